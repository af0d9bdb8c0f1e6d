"""rosecourse record: each lesson's before and after on its article's workload, written to data/results."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checks import require
from ..lessons import LESSONS, Lesson, lesson
from ..lessons.workloads import ArticleWorkload
from ..measure.profiling import STEPS
from ..measure.provenance import provenance
from ..measure.timeline import Timeline
from ..models.load import resolve_device
from ..records.comparisons import RecordedComparison
from ..records.json_file import require_writable_folder
from ..records.recorder import Assignment, Recorder
from ..records.results import RESULTS
from .building import config_of, model_of
from .flags import add_model_flags, command_line, flags_of, require_counts, text_of
from .parser import Parser, command_parser, run_command

NAME = "record"
LEAST_PAIRS = 5  # with fewer, the interval of a ratio says next to nothing
LEASTS = {"pairs": LEAST_PAIRS, "num_requests": 1, "max_new_tokens": 2, "max_batch_size": 1}
RANDOM_WEIGHTS = "gpt2"  # on a GPU: the articles' model, whose speed does not depend on its weights
SIZES = ("num_requests", "max_new_tokens", "max_batch_size")


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Record each lesson's before and after on its article's workload, in interleaved runs."
    )
    known = ",".join(rung.number for rung in LESSONS)
    parser.add_argument("--lessons", default=known, metavar="NNN,NNN", help="which, in this order")
    parser.add_argument(
        "--pairs", type=int, default=LEAST_PAIRS, help="pairs of runs that count, after one that warms up"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the results (default: data/results)")
    parser.add_argument("--force", action="store_true", help="record anew what is there for this commit and settings")
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


def assignment(rung: Lesson, parser: Parser, args: argparse.Namespace) -> Assignment:
    """What is recorded of a lesson: its article's workload, with the sizes that the flags give instead."""
    given = {name: value for name in SIZES if (value := getattr(args, name)) is not None}
    told = argparse.Namespace(**{k: v for k, v in vars(args).items() if k not in ("out", "force", "commit")})
    told.lessons = rung.number
    return Assignment(rung, replace(rung.workload, **given), command_line(parser, told), flags_of(told))


def source_of(args: argparse.Namespace) -> dict[str, Any]:
    """Commit and dirty flag: git's, or where there is no git those that `--commit` states."""
    known = {key: value for key, value in provenance().items() if key in ("commit", "dirty")}
    if args.commit is None:
        return known
    commit, dirty = args.commit.removesuffix("-dirty"), args.commit.endswith("-dirty")
    is_sha = 7 <= len(commit) <= 40 and set(commit) <= set("0123456789abcdef")
    require(is_sha, f"commit is {args.commit!r}: give 7 to 40 digits of `git rev-parse HEAD`, and -dirty if it is")
    here = known["commit"]
    require(here is None or here.startswith(commit), f"commit is {commit}, but git says {here}: leave --commit out")
    return {"commit": here or commit, "dirty": known["dirty"] if here else dirty}


def require_room(prompt_ids: Sequence[int], workloads: Sequence[ArticleWorkload], context: int) -> None:
    """Raise `ConfigError` for a request that the model can never serve, before the first lesson runs."""
    require(len(prompt_ids) > 0, "the prompt is empty: give at least one token")
    longest = max(STEPS + 1, *(work.max_new_tokens for work in workloads))  # a timeline takes STEPS after the prefill
    require(
        len(prompt_ids) + longest <= context,
        f"a prompt of {len(prompt_ids)} tokens and {longest} new ones do not fit into the model's {context}: give a "
        "shorter prompt, or fewer --max-new-tokens",
    )


# -- the command --------------------------------------------------------------------------------------------------


def record_lessons(parser: Parser, args: argparse.Namespace) -> None:
    """Check all that was asked for, then record lesson after lesson, each written as soon as it is measured."""
    rungs = lessons_of(args)
    require_counts(args, LEASTS)
    require_writable_folder(args.out or RESULTS)
    args.prompt = text_of(args.prompt)
    is_named = args.hf_model_id is not None or args.random_weights is not None
    if not is_named and resolve_device(args.device).type == "cuda":
        args.random_weights = RANDOM_WEIGHTS
    model = model_of(args)
    prompt_ids = model.tokenizer.encode(args.prompt, verbose=False)
    tasks = [assignment(rung, parser, args) for rung in rungs]
    require_room(prompt_ids, [task.workload for task in tasks], model.shape.context)
    recorder = Recorder(model, prompt_ids, config_of(args), source_of(args), args.out or RESULTS)
    for rung in rungs:
        for path in (recorder.runs_path(rung), recorder.timelines_path(rung)):
            require(not path.is_dir(), f"{path} is a folder: move it away, or give another --out")
    untaken = [task for task in tasks if args.force or not recorder.has_timelines(task)]
    for task in tasks:
        if args.force or not recorder.has_runs(task):
            print(comparison_summary(recorder.record_runs(task, args.pairs, args.seed)), flush=True)
        elif task not in untaken:
            print(f"{task.lesson.number}: is there, of this commit and settings (--force records it anew)", flush=True)
    for task in untaken:  # after all runs: see `records.recorder`
        print(timelines_summary(task.lesson, recorder.record_timelines(task, args.seed)), flush=True)


def comparison_summary(recording: RecordedComparison) -> str:
    """One line on a lesson's recorded runs."""
    known = recording.document
    tpot = " to ".join(f"{side.figure('TPOT', 'p50'):.2f}" for side in recording.sides)
    speedup = recording.speedup
    effect = f"{speedup}, {speedup.verdict}" if recording.before.runs else "the starting point"
    tokens = "same tokens" if recording.same_tokens else "other tokens (rounding)"
    return f"{known['lesson']} {known['title']}: {effect}; TPOT p50 {tpot} ms; {tokens}"


def timelines_summary(rung: Lesson, timelines: dict[str, Timeline]) -> str:
    """One line on a lesson's timelines."""
    steps = " to ".join(f"{one.step_us / 1e3:.2f}" for one in timelines.values())
    kernels = " to ".join(f"{len(one.kernels):,}" for one in timelines.values())
    return f"{rung.number} timeline of a step, with the profiler on: {steps} ms, {kernels} kernels"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = make_parser()
    return run_command(parser, lambda args: record_lessons(parser, args), argv)
