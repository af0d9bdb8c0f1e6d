"""`check`: is the learner's class the lesson's part? Right first, then whether it has the lesson's idea."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ...errors import LessonError
from ...kernels import triton_runs_on
from ...lessons import LESSONS, Lesson, lesson
from ..world.fault import Fault, PartIsWrong
from ..world.learner import Learner
from ..world.oracle import Oracle, TableOracle
from ..world.situations import Situation
from . import end_to_end
from .ideas import Idea, Seen, ideas_until, observe, observe_course
from .scenarios import Scenario, scenarios
from .verdict import Verdict

SHOWN = 5  # faults; one is told in full, the others in a line each
NO_KERNELS = (
    "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)

NOT_SHOWN = (
    "not to be seen in Triton's interpreter: offsets past 2^31 elements (is the block an int64?), reads behind a row, "
    "a compilation for each `pos`, and whether the gate asks if Triton runs"
)


def check(part: type, lesson_number: str) -> Verdict:
    """Try a class as the part that a lesson replaces, such as `check(MyKVAppend, "038")`.

    It lives through scenarios over a real pool in which every number is known, then makes tokens in a whole engine, and
    at last is counted beside the course's part. Takes a few seconds on a CPU; the same class gets the same verdict.
    Raises `LessonError` for a lesson that is not there, or has no part to write.
    """
    changed = _lesson_with_a_part(lesson_number)
    if not isinstance(part, type):
        fault = Fault(f"check wants the class itself: check(MyPart, {changed.number!r}), not {_kind_of(part)}")
        return Verdict("this", changed.number, (fault,))
    learner = Learner(part, changed.changes[0])
    return replace(_tried(learner, changed), remarks=learner.remarks())


def _lesson_with_a_part(number: str) -> Lesson:
    changed = lesson(number)
    if not changed.changes:
        known = ", ".join(rung.number for rung in LESSONS if rung.changes)
        raise LessonError(f"lesson {number!r} replaces no part: give one of {known}")
    return changed


def _kind_of(part: Any) -> str:
    return f"an object of {type(part).__name__}"


def _tried(learner: Learner, changed: Lesson) -> Verdict:
    verdict = Verdict(learner.part.__name__, changed.number)
    has_kernels = changed.number == "061"
    device = "cuda" if has_kernels and torch.cuda.is_available() else "cpu"
    kernels_run = has_kernels and triton_runs_on(torch.device(device))
    try:
        done, faults = _lived_through(learner, scenarios(learner.kind, device if kernels_run else None))
        if faults:
            return replace(verdict, faults=tuple(faults))
        done.append(_in_an_engine(learner, changed, device if kernels_run else "cpu"))
        compared = _compared(learner, changed, kernels_run, device)
    except PartIsWrong as wrong:
        return replace(verdict, faults=(wrong.fault,))
    if kernels_run and device == "cpu" and "missing" not in compared:
        done += (NOT_SHOWN,)
    unchecked = (NO_KERNELS,) if has_kernels and not kernels_run else ()
    done += compared.pop("done", ())
    return replace(verdict, done=tuple(done), unchecked=unchecked, **compared)


def _lived_through(learner: Learner, stories: list[Scenario]) -> tuple[list[str], list[Fault]]:
    """What was tried, and the first faults."""
    faults, steps = [], 0
    for scenario in stories:
        fault, made = _play(learner, scenario)
        steps += made
        faults += [fault] if fault else []
        # Enough, or it cannot be built or called at all, or each would take as long.
        if len(faults) == SHOWN or (fault and (fault.ends or not made)):
            break
    return [f"{len(stories)} scenarios, {steps} steps: every number in its place, every block with its owners"], faults


def _play(learner: Learner, scenario: Scenario) -> tuple[Fault | None, int]:
    """What went wrong in a scenario, and how many steps it came to."""
    oracle, fault = None, None
    try:
        oracle = (TableOracle if learner.kind == "block_tables" else Oracle)(learner, scenario.sizes)
        scenario.story(oracle)
    except PartIsWrong as wrong:
        fault = wrong.fault
    except Exception as error:  # the part has left something that cannot even be read
        fault = Fault(f"after the part the pool cannot be used any more: {type(error).__name__}: {error}")
    steps = oracle.steps if oracle else 0
    where = f"{scenario.name} (step {steps})" if steps else scenario.name
    return (replace(fault, tried=where) if fault else None), steps


def _in_an_engine(learner: Learner, changed: Lesson, device: str) -> str:
    try:
        return end_to_end.same_tokens(learner, changed, device)
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=end_to_end.NAME)) from None
    except Exception as error:  # after the part the engine itself cannot go on
        what = f"the engine stopped: {type(error).__name__}: {error}"
        raise PartIsWrong(Fault(what, tried=end_to_end.NAME)) from None


def _compared(learner: Learner, changed: Lesson, with_kernels: bool, device: str) -> dict[str, Any]:
    """What the part does more often than the course's part, in the words of a verdict.

    The first lesson of which something is missing is enough: the others build on it.
    """
    course = getattr(changed.after, learner.kind)
    seen: dict[Situation, tuple[Seen, Seen]] = {}
    for ideas in ideas_until(changed, with_kernels):
        missing: dict[str, str] = {}  # the first of each kind says enough
        hints, met, words = [], [], []  # words: in the end those of the last lesson, the changed one where it can run
        for idea in ideas:
            at = idea.situation
            if at not in seen:
                seen[at] = observe(learner, at, device), observe_course(course, learner.kind, at, device)
            found, right = map(idea.count, seen[at])
            if found > right and idea.words not in missing:
                missing[idea.words] = idea.told(found, right)
                hints += [idea.hint(seen[at][0], right)]
            met += [idea] if found <= right else []
            words += [idea.words]
        if missing:
            partly = ideas[0].lesson == changed.number and any(
                idea.words in missing and _is_the_lessons(idea, changed, learner.kind, device) for idea in met
            )
            hint = next(filter(None, hints), "")
            return {"missing": tuple(missing.values()), "partly": partly, "hint": hint}
    counted = f"counted in {len(seen)} kinds of steps, never more than in the course's part: "
    return {"done": (counted + ", ".join(dict.fromkeys(words)),)}


def _is_the_lessons(idea: Idea, changed: Lesson, kind: str, device: str) -> bool:
    """Whether the part before the lesson has more of it in the same situation."""
    before, after = (
        observe_course(getattr(parts, kind), kind, idea.situation, device) for parts in (changed.before, changed.after)
    )
    return idea.count(before) > idea.count(after)
