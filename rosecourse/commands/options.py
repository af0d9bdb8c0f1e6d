"""The flags that commands share; nothing here needs torch. click reads the environment's variables, too."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from functools import reduce, update_wrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from ..checks import require
from ..errors import RequestError
from ..records.files import require_writable

MOST = 1_000_000  # requests, runs, pairs: more than any machine gets done
LESSONS = ("035", "036", "038", *(f"{number:03}" for number in range(59, 72)))  # as in `lessons`
LAST_DENSE = "061"  # the last lesson whose cache can be gathered
DTYPES = ("float32", "float16", "bfloat16")  # as in `models.load`


class Flags(SimpleNamespace):
    """The values of a command's flags, by name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        named = given.get("hf_model_id") is not None and given.get("random_weights") is not None
        require(not named, "--hf-model-id and --random-weights both name a model: give one of them")
        gathers = given.get("dense") and given["lesson"] > LAST_DENSE
        lessons = f"--dense goes with lessons {LESSONS[0]} to {LAST_DENSE}"
        require(not gathers, f"{lessons}: add --lesson {LAST_DENSE}, or leave --dense out")

    @property
    def settings(self) -> dict[str, Any]:
        """The flags that figures depend on, for a file; a model's folder by its name alone."""
        known = {name: value for name, value in vars(self).items() if name != "json"}
        folder = Path(known["hf_model_id"] or "").expanduser()
        return known | ({"hf_model_id": folder.resolve().name} if known["hf_model_id"] and folder.is_dir() else {})


def command_line(values: dict[str, Any]) -> str:
    """The command that is running with these values, as it can be typed again; without what is the default."""
    context = click.get_current_context()
    words = context.command_path.split()
    for param in context.command.params:
        value = values.get(param.name or "")
        if value is not None and value != param.get_default(context):
            words += [param.opts[0]] + ([] if value is True else [str(value)])
    return shlex.join(words)


def command(work: Callable[[Flags], int | None]) -> click.Command:
    """A click command of a function that takes its flags as one object and returns the exit code."""
    return click.command(work.__name__)(update_wrapper(lambda **given: work(Flags(**given)), work))


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator."""
    return lambda work: reduce(lambda done, option: option(done), reversed(options), work)


def count(least: int = 1, most: int = MOST) -> click.IntRange:
    return click.IntRange(least, most)


def text_of(context: click.Context, param: click.Parameter, prompt: str) -> str:
    """The prompt; `-` is read from standard input, less the line break at its end."""
    try:
        text = (sys.stdin.read() if sys.stdin else "").removesuffix("\n") if prompt == "-" else prompt
        text.encode()
    except UnicodeError:
        raise RequestError("the prompt is not UTF-8 text") from None
    except OSError as error:
        raise RequestError(f"the prompt cannot be read from standard input: {error.strerror or error}") from None
    return text


def of_the_environment(variable: str, **settings: Any) -> Callable[[Any], Any]:
    """A hidden flag that an environment variable of the articles sets."""
    flag = "--" + variable.partition("_")[2].lower().replace("_", "-")
    return click.option(flag, envvar=variable, show_envvar=True, hidden=True, **settings)


LESSON_OR_BEST = click.Choice([*LESSONS, "best"])
RANDOM_WEIGHTS = click.Choice(["gpt2", "gpt2-medium", "smollm2-135m", "llama-1b", "llama-8b"])  # as in `models.load`
JSON, SAMPLES = "Write command, host and raw samples there.", "Completions of each prompt; sample i has seed + i."
THREADS = "CPU threads of torch. Default: 1 for a small model, and on two cores."

samples_option = click.option("--samples", type=count(), default=1, help=SAMPLES)
eos_option = click.option("--no-stop-on-eos", is_flag=True, help="Go on after the end of text: equal lengths.")
threads_option = click.option("--threads", type=count(1, 1024), help=THREADS)


def file_option(flag: str, says: str) -> Callable[[Any], Any]:
    """A file to write; whether it can be written is asked at once."""
    return click.option(flag, type=Path, metavar="FILE", callback=lambda *of: require_writable(of[-1], flag), help=says)


json_option = file_option("--json", JSON)
model_options = together(
    click.option("--hf-model-id", "--model", metavar="ID", help="A Hugging Face folder or hub id. Default: tiny-gpt2."),
    click.option("--random-weights", type=RANDOM_WEIGHTS, help="A shape with random weights: for speed."),
    click.option("--device", default="auto", help="auto, cpu or cuda."),
    click.option("--dtype", type=click.Choice(DTYPES), help="Default: float32 on a CPU, float16 on CUDA."),
    click.option("--seed", type=count(0, 2**63 - 1), default=0, help="Of random weights, and of sampling."),
    threads_option,
)
engine_options = together(
    click.option("--lesson", type=LESSON_OR_BEST, default="best", metavar="NNN", help="The engine after a lesson."),
    click.option("--dense/--paged-attn", "dense", help="Gather K and V, or read them through block tables."),
    click.option("--block-size", type=int, default=64, help="Tokens of a KV block, a power of two."),
    click.option("--num-blocks", type=count(1, sys.maxsize), help="KV blocks of a layer. Default: all that is needed."),
    click.option("--no-prefix-cache", is_flag=True, help="Share no blocks between prompts that begin alike."),
    of_the_environment("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", type=count(), default=128),
    of_the_environment("ROSELLM_TRITON_KV_APPEND_FULL_BATCH_MIN_BATCH", type=count()),
    of_the_environment("ROSEINFER_NVTX", is_flag=True),
)
benchmark_options = together(  # those of the articles, and ours
    click.option("--prompt", default="Hello", callback=text_of, help="The text to complete, or - to read it."),
    click.option("--num-requests", type=count(), default=32, help="In each run."),
    click.option("--max-new-tokens", type=count(), default=64, help="Completion tokens of a request."),
    eos_option,
    click.option("--submit-interval-ms", type=click.FloatRange(0, 3_600_000), default=0.0, help="Between arrivals."),
    click.option("--pretok", is_flag=True, help="Tokenise before the clock starts."),
    click.option("--tokenize-workers", type=count(0), default=0, help="Threads that tokenise; 0: the submitting one."),
    click.option("--max-batch-size", type=count(1, sys.maxsize), default=16, help="Most requests decoded together."),
    click.option("--prefill-max-batch-size", type=count(), help="Most prompts computed together. Default: the same."),
    click.option("--prefill-admission-policy", type=click.Choice(["fifo"]), default="fifo", help="Who is next."),
    click.option("--warmup-runs", type=count(0), default=1, help="Runs that do not count."),
    click.option("--repeat-runs", type=count(), default=3, help="Runs that count."),
    json_option,
    model_options,
    engine_options,
)
