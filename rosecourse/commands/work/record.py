"""All rungs of the ladder under one workload after another, written to data/results."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...checks import require, shown
from ...lessons.workloads import ARTICLES, WITH_STEPS, ArticleWorkload
from ...measure.provenance import provenance
from ...measure.traffic import D_SMALL, D, MixedTraffic
from ...models.load import resolve_device
from ...models.shape import Model
from ...records.assignments import Assignment, Order, article_assignment, burst_assignment, load_assignments
from ...records.comparisons import RecordedComparison
from ...records.json_file import require_writable_folder
from ...records.names import BURST, firsts, workload_in
from ...records.recorder import Deadline, Recorder
from ...records.recordings import Recording
from ...records.results import RESULTS
from ...records.step_recorder import StepRecorder, StepsTask
from ...records.steps import RecordedSteps, steps_name
from ..flags import command_line, flags_of, require_counts, text_of
from ..parser import Parser
from ..record import MIXED, STEPS, WORKLOADS, make_parser
from .building import config_of, ids_of, model_of

LEAST_ROUNDS = 5  # with fewer, the interval of a ratio says next to nothing
LEASTS = {"rounds": LEAST_ROUNDS, "num_requests": 1, "max_new_tokens": 2, "max_batch_size": 1}
RANDOM_WEIGHTS = "gpt2"  # on a GPU: the articles' model, whose speed does not depend on its weights
SIZES = ("num_requests", "max_new_tokens", "max_batch_size")
IS_THERE = "{}: is there, of this commit and settings (--force records it anew)"
UNTOLD = ("out", "force", "commit", "minutes")  # flags that no figure depends on


# -- before the work ----------------------------------------------------------------------------------------------


def workloads_of(args: argparse.Namespace, known: Sequence[str] = WORKLOADS) -> list[str]:
    """What `--workloads` names, each once."""
    names = list(dict.fromkeys(name.strip() for name in args.workloads.split(",")))
    for name in names:
        require(name in known, f"there is no workload {name!r:.40}: give some of {','.join(known)}")
    return names


def first_of(args: argparse.Namespace) -> str | None:
    """The rung that `--from` names, None where it is left out. Raises `ConfigError` unless a lesson comes after it."""
    number = vars(args)["from"]
    told = f"a part of the ladder cannot begin with {shown(number)}"
    require(number is None or number in firsts(), f"{told}: give one of {', '.join(firsts())}, or leave --from out")
    return number


def order_of(name: str, prompt_ids: list[int], parser: Parser, args: argparse.Namespace) -> Order:
    """What is asked for of one workload; its command records that one alone."""
    told = argparse.Namespace(**{key: value for key, value in vars(args).items() if key not in UNTOLD})
    told.workloads = name
    return Order(prompt_ids, args.seed, config_of(args), command_line(parser, told), flags_of(told), first_of(args))


def article_of(name: str, args: argparse.Namespace, known: Mapping[str, ArticleWorkload] = ARTICLES) -> ArticleWorkload:
    """An article's workload, with the sizes that the flags give instead."""
    given = {size: value for size in SIZES if (value := getattr(args, size)) is not None}
    return replace(known[name], **given)


def traffic_of(model: Model, args: argparse.Namespace) -> MixedTraffic:
    """Mixed traffic for this device, with the sizes that the flags give instead."""
    given = {size: value for size in ("num_requests", "max_batch_size") if (value := getattr(args, size)) is not None}
    return replace(D if model.device.type == "cuda" else D_SMALL, **given)


def name_the_model(args: argparse.Namespace) -> None:
    """On a GPU, take the articles' model where the flags name none."""
    is_named = args.hf_model_id is not None or args.random_weights is not None
    if not is_named and resolve_device(args.device).type == "cuda":
        args.random_weights = RANDOM_WEIGHTS


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


def require_room(tasks: Sequence[Assignment], context: int) -> None:
    """Raise `ConfigError` for a request that the model can never serve, before the first run."""
    for task in tasks:
        prompts, longest = task.workload.prompts, task.config.max_seq_len or 0
        require(all(len(prompt) > 0 for prompt in prompts), "the prompt is empty: give at least one token")
        if workload_in(task.name) == BURST:
            told = f"mixed traffic has requests of {longest} tokens, which do not fit into the model's {context}"
            require(longest <= context, f"{told}: leave D out")
        given = len(prompts[0])
        told = f"a prompt of {given} tokens and {longest - given} new ones do not fit into the model's {context}"
        require(longest <= context, f"{told}: give a shorter prompt, or fewer --max-new-tokens")


def require_room_for_steps(tasks: Sequence[StepsTask], context: int) -> None:
    """Raise `ConfigError` where a model has no room for the steps that are timed, before the first run."""
    longest = max((task.least for task in tasks), default=0)
    told = f"the steps take sessions of {longest} tokens, which do not fit into the model's {context}"
    require(longest <= context, f"{told}: give fewer --max-new-tokens, or leave steps out")


# -- the command --------------------------------------------------------------------------------------------------


class Session:
    """One call of the command: what it records, and when it must have ended."""

    def __init__(self, parser: Parser, args: argparse.Namespace) -> None:
        """Check all that was asked for, and load the model."""
        self.deadline = Deadline(args.minutes)
        self.parser, self.args, self.names = parser, args, workloads_of(args)
        require_counts(args, LEASTS)
        require(args.minutes is None or args.minutes > 0, f"minutes is {args.minutes}: give more than 0")
        require(
            args.minutes is None or not args.force,
            "--minutes goes on with what is there and --force begins anew: give one of them",
        )
        require_writable_folder(args.out or RESULTS)
        args.prompt = text_of(args.prompt)
        name_the_model(args)
        self.model = model_of(args)
        self.traffic = traffic_of(self.model, args)
        self.prompt_ids = ids_of(args.prompt, self.model)
        context = self.model.shape.context
        self.firsts = [self._first_of(name) for name in self.names if name != STEPS]
        order = order_of(STEPS, self.prompt_ids, parser, args)
        alike = [article_assignment(article_of(name, args), order) for name in WITH_STEPS if STEPS in self.names]
        require_room([*self.firsts, *alike], context)
        self.steps = [StepsTask.of(task) for task in alike]
        require_room_for_steps(self.steps, context)
        self.recorder = Recorder(self.model, source_of(args), args.out or RESULTS)
        for name in [task.name for task in self.firsts] + [steps_name(task.name) for task in alike]:
            path = self.recorder.path(name)
            require(not path.is_dir(), f"{path} is a folder: move it away, or give another --out")

    def _first_of(self, name: str) -> Assignment:
        """What is recorded first of a workload's name: all of it, but for `D`, whose loads depend on its burst."""
        order = order_of(name, self.prompt_ids, self.parser, self.args)
        if name == MIXED:
            return burst_assignment(self.traffic, self.model.shape.vocab_size, order)
        return article_assignment(article_of(name, self.args), order)

    def record(self) -> None:
        """Record one workload after another, each written as soon as it is measured, while there is time."""
        if not (all(self._record_all(task) for task in self.firsts) and self._record_steps()):
            print(f"To go on: {command_line(self.parser, self.args)}", flush=True)

    def _record_steps(self) -> bool:
        """Record the steps of the articles' workloads, unless they are there; False if no time is left.

        What is timed comes before the first timeline: a profiler can slow a process down for good.
        """
        recorder = StepRecorder(self.recorder)
        there = [task for task in self.steps if not self.args.force and recorder.recorded(task) is not None]
        for task in there:
            print(IS_THERE.format(steps_name(task.assignment.name)), flush=True)
        missing = [task for task in self.steps if task not in there]
        if missing and not self.deadline.fits(0):
            print("steps: no time is left for them", flush=True)
            return False
        for task, timed in [(task, recorder.timed(task)) for task in missing]:
            print(steps_summary(recorder.add_timelines(task, timed)), flush=True)
        return True

    def _record_all(self, first: Assignment) -> bool:
        """Record a workload, and after a burst its loads; False if time did not suffice."""
        recording = self._record(first)
        if recording is None or workload_in(first.name) != BURST:
            return recording is not None
        loads = load_assignments(self.traffic, self.model.shape.vocab_size, recording, first.order)
        return all(self._record(task) is not None for task in loads)

    def _record(self, task: Assignment) -> Recording | None:
        """Record a workload, unless it is there; None if time does not suffice."""
        recorded = None if self.args.force else self.recorder.recorded(task)
        if recorded is not None:
            print(IS_THERE.format(task.name), flush=True)
            return recorded
        outcome = self.recorder.record(task, self.args.rounds, self.deadline, self.args.force)
        if outcome.recording is None:
            takes = f", each takes {outcome.seconds / 60:.1f} minutes" if outcome.seconds else ""
            print(f"{task.name}: {outcome.rounds} of {self.args.rounds} rounds are there{takes}", flush=True)
        else:
            print(ladder_summary(outcome.recording), flush=True)
        return outcome.recording


def ladder_summary(recording: Recording) -> str:
    """A line on a recording, and one on each of its rungs."""
    conditions = recording.conditions
    tokens = "same tokens" if conditions.same_tokens else "some tokens differ (rounding)"
    lines = [f"{recording.document['workload']}: {conditions.rounds} rounds, {tokens}"]
    before = None
    for number, rung in recording.rungs.items():
        line = f"  {number} {recording.document['titles'][number]}: TPOT p50 {rung.figure('TPOT', 'p50'):.2f} ms"
        if before is not None:
            speedup = RecordedComparison.of(recording, before, number).speedup
            line += f"; {speedup} the throughput of {before}, {speedup.verdict}"
        lines.append(line)
        before = number
    return "\n".join(lines)


def steps_summary(steps: RecordedSteps) -> str:
    """A line on the recorded steps of a workload, and one on each rung."""
    ladder = steps.ladder
    where = f"{ladder.batch} sessions of {ladder.context} tokens, floor {ladder.floor_ms:.2f} ms"
    lines = [f"{steps_name(steps.document['workload'])}: {where}"]
    for number, title in ladder.titles.items():
        device = f"device busy {ladder.busy_ms[number]:.2f} ms in {ladder.kernels[number]:,} kernels"
        lines.append(f"  {number} {title}: {ladder.times.step_ms(number):.2f} ms a step, {device}")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> None:
    """Record what the flags ask for."""
    Session(make_parser(), args).record()
