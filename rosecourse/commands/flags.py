"""The flags that commands share, and what the environment adds to them. Nothing here needs torch.

This is the edge of the package, the only place that reads the environment.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from ..checks import require, shown
from ..errors import ConfigError, RequestError
from .parser import Parser

MOST = 1_000_000  # requests, runs, pairs, threads
LONGEST_PROMPT = 2**26  # characters: more than any context, and little enough to be held
DTYPES = ("float32", "float16", "bfloat16")  # as in `models.load`
ADMISSION_POLICIES = ("fifo",)  # the articles' flag: schedulers know no other
READERS = ("sequential", "threads", "one", "asyncio")  # as in `measure.readers`


# -- definitions --------------------------------------------------------------------------------------------------


def add_model_flags(parser: Parser, default: str = "the shipped one") -> None:
    """Which model, on which device. default: which one it is if none is named, in words."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--hf-model-id", metavar="ID", help=f"a Hugging Face folder or hub id (default: {default})")
    which.add_argument("--random-weights", metavar="NAME", help="a shape with random weights, such as gpt2: for speed")
    group.add_argument("--device", default="auto", help="auto, cpu or cuda")
    group.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, float16 on CUDA")
    group.add_argument("--seed", type=int, default=0, help="of the random weights, and of sampling")
    add_threads_flag(group)


def add_threads_flag(group: Any) -> None:
    """How many CPU threads torch uses. group: of a parser, or a parser itself."""
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads that share an operation (default: 1 for a small model, and for any on two cores, where "
        "threads mostly wait for each other; else torch's own choice)",
    )


def add_articles_flags(parser: Parser, sizes: str) -> None:
    """Which model, and other sizes than a workload's own. sizes: what those are, in words."""
    work = parser.add_argument_group(f"workload (default: {sizes}; D has lengths of its own)")
    work.add_argument("--prompt", default="Hello", help="the text that every request completes, except those of D")
    work.add_argument("--num-requests", type=int, help="in each run")
    work.add_argument("--max-new-tokens", type=int, help="completion tokens per request, except for D")
    work.add_argument("--max-batch-size", type=int, help="most requests decoded, and most prompts computed, together")
    add_model_flags(parser, default="the shipped one; on a GPU, random weights of gpt2")
    parser.set_defaults(block_size=64, num_blocks=None, no_prefix_cache=True)  # the articles' engine


def add_engine_flags(parser: Parser) -> None:
    """Which engine: the lesson's parts, the attention and the cache."""
    group = parser.add_argument_group("engine")
    group.add_argument("--lesson", default="best", metavar="NNN", help="the engine as it is after a lesson, or best")
    attention = group.add_mutually_exclusive_group()
    attention.add_argument(
        "--paged-attn",
        dest="dense",
        action="store_false",
        default=False,
        help="read K and V through block tables; this is the default, and the articles' command lines have it",
    )
    attention.add_argument(
        "--dense",
        action="store_true",
        help="gather K and V into dense tensors, as engines did before paged attention (with lessons up to 061)",
    )
    group.add_argument("--block-size", type=int, default=64, help="tokens in a KV block, a power of two")
    group.add_argument("--num-blocks", type=int, help="KV blocks per layer (default: what the batch can need)")
    group.add_argument(
        "--no-prefix-cache", action="store_true", help="share no blocks between prompts that begin alike"
    )


def add_workload_flags(parser: Parser) -> None:
    """What is asked of the engine, and how often: the flags of the articles' command lines, and ours."""
    work = parser.add_argument_group("workload")
    work.add_argument("--prompt", default="Hello", help="the text that every request completes, or - to read it")
    work.add_argument("--num-requests", type=int, default=32, help="in each run")
    work.add_argument("--max-new-tokens", type=int, default=64, help="completion tokens per request")
    work.add_argument("--no-stop-on-eos", action="store_true", help="go on after the end of text: equal lengths")
    work.add_argument(
        "--submit-interval-ms", type=float, default=0.0, help="between scheduled arrivals; 0: all at once"
    )
    work.add_argument("--pretok", action="store_true", help="tokenise before the clock starts")
    work.add_argument("--tokenize-workers", type=int, default=0, help="threads that tokenise; 0: the submitting one")
    work.add_argument("--max-batch-size", type=int, default=16, help="most requests decoded together")
    work.add_argument("--prefill-max-batch-size", type=int, help="most prompts computed together (default: the same)")
    work.add_argument(
        "--prefill-admission-policy", choices=ADMISSION_POLICIES, default="fifo", help="which waiting request is next"
    )
    measuring = parser.add_argument_group("measuring")
    measuring.add_argument("--warmup-runs", type=int, default=1, help="not counted; they also fill the prefix cache")
    measuring.add_argument("--repeat-runs", type=int, default=3, help="counted; each has a scheduler of its own")


def add_samples_flag(parser: Parser) -> None:
    """For the commands that can ask for several samples of a prompt."""
    parser.add_argument(
        "--samples",
        type=int,
        default=1,
        help="completions of each prompt, which is computed once (parallel sampling); sample i has seed + i",
    )


def add_readers_flag(parser: Parser) -> None:
    """For the command that reads streams."""
    parser.add_argument(
        "--readers",
        choices=READERS,
        default="sequential",
        help="who reads the streams: one after the other once all are submitted, a thread for each, one thread for "
        "all, or a coroutine for each in one event loop",
    )


def add_json_flag(parser: Parser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write command, host, versions and raw samples there")


def add_benchmark_flags(parser: Parser) -> None:
    """The flags of both benchmarks."""
    add_json_flag(parser)
    add_workload_flags(parser)
    add_model_flags(parser)
    add_engine_flags(parser)


# -- values -------------------------------------------------------------------------------------------------------


def require_counts(args: argparse.Namespace, leasts: dict[str, int]) -> None:
    """Raise `ConfigError` for a flag whose number is below its least, or beyond what any machine can do."""
    for flag, least in leasts.items():
        value = getattr(args, flag)
        require(value is None or value >= least, f"{flag} is {shown(value)}: give {least} or more")
        require(value is None or value <= MOST, f"{flag} is {shown(value)}: give at most {MOST}")


def text_of(prompt: str) -> str:
    """The prompt; `-` is read from standard input, less the line break at its end. Refuses what is not UTF-8."""
    try:
        text = prompt if prompt != "-" else _standard_input().removesuffix("\n")
        text.encode()
    except UnicodeError:
        raise RequestError("the prompt is not UTF-8 text") from None
    return text


def _standard_input() -> str:
    try:
        text = sys.stdin.read(LONGEST_PROMPT + 1)
    except OSError as error:
        raise RequestError(f"the prompt cannot be read from standard input: {error.strerror or error}") from None
    if len(text) > LONGEST_PROMPT:
        raise RequestError(f"the prompt has more than {LONGEST_PROMPT} characters, which no model takes")
    return text


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    """Every flag's value, for a file: without that file's own name, and a model's folder by its name alone."""
    flags = {name: value for name, value in vars(args).items() if name != "json"}
    if flags["hf_model_id"] and Path(flags["hf_model_id"]).is_dir():
        flags["hf_model_id"] = Path(flags["hf_model_id"]).resolve().name
    return flags


def command_line(parser: Parser, args: argparse.Namespace) -> str:
    """The command that `args` came from, as it can be typed on another machine; without what is the default."""
    words = parser.prog.split()
    for name, value in flags_of(args).items():
        if value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(words)


# -- the environment ----------------------------------------------------------------------------------------------


def environment_settings() -> dict[str, Any]:
    """What the environment says of an engine, as arguments of `EngineConfig`; the articles' engine reads it too."""
    return {
        "triton_kv_append_min_batch": _number_in_environment("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", 128),
        "triton_kv_append_full_batch_min_batch": _number_in_environment(
            "ROSELLM_TRITON_KV_APPEND_FULL_BATCH_MIN_BATCH", None
        ),
        "nvtx": os.environ.get("ROSEINFER_NVTX") == "1",
    }


def _number_in_environment(name: str, default: int | None) -> int | None:
    text = os.environ.get(name)
    try:
        return default if text is None else int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}: give a whole number, or unset it") from None
