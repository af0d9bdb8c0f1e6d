"""python -m rosecourse.record: each lesson's before and after on its article's workload, written to data/results.

A lesson is recorded when it has both files: its runs (`results`), and the timelines of one step (`timeline`). All runs
come first, the timelines of all lessons after them: a profiler can slow a process down for good (CUPTI stays attached).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from .archive import RESULTS, sealed, slug
from .arguments import Parser, command
from .bench.compare import interleave
from .bench.floor import bytes_per_run, copy_bandwidth
from .bench.metrics import DEFINITIONS
from .bench.report import provenance
from .bench.workload import Run, Workload, run_scheduler, run_streaming
from .cli import (
    add_model_flags,
    check_counts,
    command_line,
    config_of,
    engine_of,
    flags_of,
    model_of,
    run,
    text_of,
)
from .config import SamplingParams, require
from .decode import DecodeParts
from .engine import InferenceEngine
from .errors import RosecourseError
from .files import check_folder, write_json
from .lessons import LESSONS, Lesson, lesson
from .models.gpt2 import GPT2
from .models.load import resolve_device
from .profiling import STEPS, take_timeline
from .recorded_runs import FORMAT, Recorded, load, packed
from .timeline import Timeline, path_of, sealed_document
from .timeline import load as load_timelines

NAME = "record"
LEAST_PAIRS = 5  # with fewer, the interval of a ratio says next to nothing
RANDOM_WEIGHTS = "gpt2"  # on a GPU: the articles' model, whose speed does not depend on its weights
UNITS = "microseconds, from the start of a run; moments_us: the first, then the gaps; tokens: first, count, ..."


@dataclass(frozen=True)
class Task:
    """What an article measures: its benchmark, and the sizes on its command line; prefill takes as many as a step."""

    benchmark: str
    num_requests: int
    max_new_tokens: int
    max_batch_size: int

    @property
    def run(self) -> Callable[[InferenceEngine, Workload], Run]:
        return {"benchmark_scheduler": run_scheduler, "benchmark_streaming": run_streaming}[self.benchmark]


A = Task("benchmark_scheduler", num_requests=64, max_new_tokens=512, max_batch_size=64)
B = Task("benchmark_streaming", num_requests=256, max_new_tokens=256, max_batch_size=16)
C = Task("benchmark_streaming", num_requests=128, max_new_tokens=128, max_batch_size=128)
TASKS = {"035": A, "036": A, "038": A, "059": B, "060": B, "061": C}
SIZES = ("num_requests", "max_new_tokens", "max_batch_size")


def task_of(rung: Lesson, args: argparse.Namespace) -> Task:
    """The task of a lesson's article, with the sizes that the flags give instead."""
    given = {name: value for name in SIZES if (value := getattr(args, name)) is not None}
    return replace(TASKS[rung.number], **given)


def make_parser() -> Parser:
    parser = command(NAME, "Record each lesson's before and after on its article's workload, in interleaved runs.")
    known = ",".join(rung.number for rung in LESSONS)
    parser.add_argument("--lessons", default=known, metavar="NNN,NNN", help="which, in this order")
    parser.add_argument(
        "--pairs", type=int, default=LEAST_PAIRS, help="pairs of runs that count, after one that warms up"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the results (default: data/results)")
    parser.add_argument("--force", action="store_true", help="record what is there for this commit and settings, too")
    parser.add_argument(
        "--commit", metavar="SHA", help="where there is no git: the source's commit, with -dirty if it has been changed"
    )
    work = parser.add_argument_group("workload (default: as in the lesson's article)")
    work.add_argument("--prompt", default="Hello", help="the text that every request completes")
    work.add_argument("--num-requests", type=int, help="in each run")
    work.add_argument("--max-new-tokens", type=int, help="completion tokens per request")
    work.add_argument("--max-batch-size", type=int, help="most requests decoded, and most prompts computed, together")
    add_model_flags(parser)
    parser.set_defaults(block_size=64, num_blocks=None, no_prefix_cache=True)  # the articles' engine
    return parser


# -- before the work ----------------------------------------------------------------------------------------------


def lessons_of(args: argparse.Namespace) -> list[Lesson]:
    """The lessons that `--lessons` names, each once."""
    return list(dict.fromkeys(lesson(number.strip()) for number in args.lessons.split(",")))


def check_flags(args: argparse.Namespace) -> None:
    leasts = {"pairs": LEAST_PAIRS, "num_requests": 1, "max_new_tokens": 2, "max_batch_size": 1}
    check_counts(args, leasts)


def check_requests(prompt_ids: Sequence[int], tasks: Sequence[Task], context: int) -> None:
    """Raise `ConfigError` for what the model can never serve, before the first lesson runs."""
    require(len(prompt_ids) > 0, "the prompt is empty: give at least one token")
    longest = max(STEPS + 1, *(task.max_new_tokens for task in tasks))  # a timeline takes STEPS after the prefill
    require(
        len(prompt_ids) + longest <= context,
        f"a prompt of {len(prompt_ids)} tokens and {longest} new ones do not fit into the model's {context}: give a "
        "shorter prompt, or fewer --max-new-tokens",
    )


def source_of(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Commit and dirty flag: git's, or where there is no git those that `--commit` states."""
    if args.commit is None:
        return {"commit": found["commit"], "dirty": found["dirty"]}
    commit, dirty = args.commit.removesuffix("-dirty"), args.commit.endswith("-dirty")
    is_sha = 7 <= len(commit) <= 40 and set(commit) <= set("0123456789abcdef")
    require(is_sha, f"commit is {args.commit!r}: give 7 to 40 digits of `git rev-parse HEAD`, and -dirty if it is")
    here = found["commit"]
    require(here is None or here.startswith(commit), f"commit is {commit}, but git says {here}: leave --commit out")
    return {"commit": here or commit, "dirty": found["dirty"] if here else dirty}


def machine_of(device: torch.device, found: dict[str, Any]) -> dict[str, Any]:
    """The host, with the GPU that is measured (None: the CPU is) and its driver."""
    cuda = device.type == "cuda"
    gpu = torch.cuda.get_device_name(device) if cuda else None
    return found["host"] | {"gpu": gpu, "driver": driver_version() if cuda else None}


def driver_version() -> str | None:
    """The NVIDIA driver's version; None where nvidia-smi does not say it."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


# -- one lesson ---------------------------------------------------------------------------------------------------


class Recorder:
    """Records lessons over one model, on one machine, from one source."""

    def __init__(self, parser: Parser, args: argparse.Namespace, model: GPT2, prompt_ids: list[int]) -> None:
        found = provenance()
        self.parser, self.args, self.model, self.prompt_ids = parser, args, model, prompt_ids
        self.source = source_of(args, found)
        self.host = machine_of(model.device, found)
        self.versions = found["versions"]
        self.folder = (args.out or RESULTS) / slug(self.host["gpu"] or "cpu")
        self.bandwidth: float | None = None  # measured when it is first needed

    def path(self, rung: Lesson) -> Path:
        return self.folder / f"{rung.number}.json"

    def head(self, rung: Lesson) -> dict[str, Any]:
        """All that is known before a lesson is measured: if it is the same, so would be the figures."""
        args = argparse.Namespace(**{k: v for k, v in vars(self.args).items() if k not in ("out", "force", "commit")})
        args.lessons = rung.number
        settings = flags_of(args) | asdict(config_of(args)) | asdict(task_of(rung, self.args))
        settings |= {
            "model": self.model.name,
            "device": self.model.device.type,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }
        return {
            "format": FORMAT,
            "lesson": rung.number,
            "title": rung.title,
            "command": command_line(self.parser, args),
            **self.source,
            "host": self.host,
            "versions": self.versions,
            "settings": settings,
        }

    def has_runs(self, rung: Lesson) -> bool:
        """Whether the runs are recorded, of the same source, machine and settings."""
        return self._is_there(rung, lambda: load(self.path(rung), rung.number).document)

    def has_timelines(self, rung: Lesson) -> bool:
        """Whether the timelines are recorded, of the same source, machine and settings."""
        return self._is_there(rung, lambda: load_timelines(path_of(self.folder, rung.number), rung.number))

    def _is_there(self, rung: Lesson, read: Callable[[], dict[str, Any]]) -> bool:
        """Whether there is a whole file of the same source, machine and settings. A changed source has no name."""
        if self.source["commit"] is None or self.source["dirty"] is not False:
            return False
        try:
            document = read()
        except RosecourseError:  # a file that is missing or damaged is recorded anew
            return False
        return all(document.get(key) == value for key, value in self.head(rung).items() if key != "format")

    def record(self, rung: Lesson) -> Recorded:
        """Measure a lesson's runs and write their file, whole or not at all."""
        task = task_of(rung, self.args)
        self.bandwidth = self.bandwidth or float(copy_bandwidth(self.model.device))
        params = SamplingParams(max_new_tokens=task.max_new_tokens, stop_on_eos=False, seed=self.args.seed)
        work = Workload((tuple(self.prompt_ids),) * task.num_requests, params)
        sides = self._measure(rung, task, work)
        same_tokens = all(one.completions == sides["after"][0].completions for side in sides.values() for one in side)
        if self.model.dtype == torch.float32 and not same_tokens:
            raise RosecourseError(
                f"lesson {rung.number}: the tokens differ, the times mean nothing; please report this"
            )
        document = self.head(rung) | {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "units": UNITS,
            "definitions": DEFINITIONS,
            "same_tokens": same_tokens,
            "copy_bytes_per_second": self.bandwidth,
        }
        for name, side in sides.items():
            document[name] = [packed(one, bytes_per_run(self.model, work, one)) for one in side]
        found = Recorded.of(sealed(document))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.path(rung), found.document)
        return found

    def _measure(self, rung: Lesson, task: Task, work: Workload) -> dict[str, list[Run]]:
        """The counted runs before and after; before the first lesson there is nothing to run."""
        engines = [self._engine(parts, task) for parts in ([rung.before] if rung.changes else []) + [rung.after]]
        total = len(engines) * (self.args.pairs + 1)
        # No bar where nobody watches (disable=None), and none that moves while the clock runs.
        with tqdm(total=total, desc=rung.number, file=sys.stderr, leave=False, disable=None) as bar:

            def one(engine: InferenceEngine) -> Run:
                done = task.run(engine, work)
                bar.update()
                return done

            if len(engines) == 1:
                return {"before": [], "after": [one(engines[0]) for _ in range(total)][1:]}
            before, after = interleave(lambda: one(engines[0]), lambda: one(engines[1]), self.args.pairs)
            return {"before": before, "after": after}

    def record_timelines(self, rung: Lesson) -> dict[str, Timeline]:
        """Take a lesson's timelines, with as many sessions as its steps have; write their file, whole or not at all."""
        sides = ({"before": rung.before} if rung.changes else {}) | {"after": rung.after}
        found = {side: self._timeline(parts, task_of(rung, self.args)) for side, parts in sides.items()}
        head = self.head(rung) | {"date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path_of(self.folder, rung.number), sealed_document(head, found))
        return found

    def _timeline(self, parts: DecodeParts, task: Task) -> Timeline:
        """A timeline of an engine like the runs', with room for its steps where a run has fewer."""
        batch = min(task.max_batch_size, task.num_requests)
        new = max(task.max_new_tokens, STEPS + 1)
        engine = engine_of(self.args, self.model, parts, max_batch_size=batch, max_seq_len=len(self.prompt_ids) + new)
        params = SamplingParams(max_new_tokens=new, stop_on_eos=False, seed=self.args.seed)
        sessions = [engine.new_session(self.prompt_ids, params) for _ in range(batch)]
        engine.take_tokens(sessions, engine.prefill(sessions))
        return take_timeline(engine, sessions)

    def _engine(self, parts: DecodeParts, task: Task) -> InferenceEngine:
        """An engine no larger than the task needs."""
        largest = min(task.max_batch_size, task.num_requests)
        longest = len(self.prompt_ids) + task.max_new_tokens
        return engine_of(self.args, self.model, parts, max_batch_size=largest, max_seq_len=longest)


# -- the command --------------------------------------------------------------------------------------------------


def record_lessons(parser: Parser, args: argparse.Namespace) -> None:
    """Check all that was asked for, then record lesson after lesson, each written as soon as it is measured."""
    rungs = lessons_of(args)
    check_flags(args)
    check_folder(args.out or RESULTS)
    args.prompt = text_of(args.prompt)
    is_named = args.hf_model_id is not None or args.random_weights is not None
    if not is_named and resolve_device(args.device).type == "cuda":
        args.random_weights = RANDOM_WEIGHTS
    model = model_of(args)
    prompt_ids = model.tokenizer.encode(args.prompt, verbose=False)
    check_requests(prompt_ids, [task_of(rung, args) for rung in rungs], model.shape.context)
    recorder = Recorder(parser, args, model, prompt_ids)
    for rung in rungs:
        for path in (recorder.path(rung), path_of(recorder.folder, rung.number)):
            require(not path.is_dir(), f"{path} is a folder: move it away, or give another --out")
    untaken = [rung for rung in rungs if args.force or not recorder.has_timelines(rung)]
    for rung in rungs:
        if args.force or not recorder.has_runs(rung):
            print(summary(recorder.record(rung)), flush=True)
        elif rung not in untaken:
            print(f"{rung.number}: is there, of this commit and settings (--force records it anew)", flush=True)
    for rung in untaken:  # after all runs: see the top of this file
        print(timeline_summary(rung, recorder.record_timelines(rung)), flush=True)


def summary(found: Recorded) -> str:
    """One line on a lesson's recording."""
    tpot = [f"{found.figure(side, 'TPOT', 'p50'):.2f}" for side in ("before", "after") if found.runs(side)]
    speed = found.ratio()
    effect = "the starting point" if speed is None else f"{speed}, {speed.verdict}"
    tokens = "same tokens" if found.same_tokens else "other tokens (rounding)"
    return f"{found.lesson} {found.title}: {effect}; TPOT p50 {' to '.join(tpot)} ms; {tokens}"


def timeline_summary(rung: Lesson, found: dict[str, Timeline]) -> str:
    """One line on a lesson's timelines."""
    steps = " to ".join(f"{one.step_us / 1e3:.2f}" for one in found.values())
    kernels = " to ".join(f"{len(one.kernels):,}" for one in found.values())
    return f"{rung.number} timeline of a step, with the profiler on: {steps} ms, {kernels} kernels"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = make_parser()
    return run(parser, lambda args: record_lessons(parser, args), argv)


if __name__ == "__main__":
    sys.exit(main())
