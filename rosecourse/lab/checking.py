"""`check`: is the learner's class the lesson's part? Right first, then whether it has the lesson's idea."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ..errors import KVCacheExhausted, LessonError, RosecourseError
from ..kernels import triton_runs_on
from ..kv.blocks import BlockTable, KVBlockInfo, KVBlockManager
from ..lessons import LESSONS, Lesson, lesson
from ..session import InferenceSession
from . import end_to_end
from .ideas import Seen, Situation, ideas_until, observe, observe_course
from .learner import Learner
from .oracle import Oracle, TableOracle
from .scenarios import Scenario, scenarios
from .verdict import Fault, PartIsWrong, Verdict

OURS = (KVBlockManager, KVBlockInfo, BlockTable, InferenceSession)
SHOWN = 6  # faults after the first


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
    with _ours_as_they_were() as replaced:
        verdict = _tried(learner, changed)
    if replaced:
        reason = "other parts use it too: write the new way into the part itself"
        verdict = replace(verdict, faults=(Fault(f"the part replaced {replaced[0]}", reason=reason),))
    return replace(verdict, remarks=learner.remarks())


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
    device = "cuda" if changed.number == "061" and torch.cuda.is_available() else "cpu"
    with_kernels = changed.number == "061" and triton_runs_on(torch.device(device))
    stories = scenarios(learner.kind, device if with_kernels else None)
    faults, steps = [], 0
    for scenario in stories:
        fault, made = _play(learner, scenario)
        steps += made
        faults += [fault] if fault else []
        if fault and not made:  # it cannot be built or called at all
            break
    done = [f"{len(stories)} scenarios, {steps} steps: every number in its place, every block with its owners"]
    try:
        if not faults:
            done.append(end_to_end.same_tokens(learner, changed, device if with_kernels else "cpu"))
    except PartIsWrong as wrong:
        faults.append(replace(wrong.fault, tried=end_to_end.NAME))
    except RosecourseError as error:
        faults.append(Fault(f"the engine stopped: {error}", tried=end_to_end.NAME))
    if faults:
        more = len(faults) - 1 - SHOWN
        rest = (Fault(f"{more} more", tried="and"),) if more > 0 else ()
        return replace(verdict, faults=(*faults[: 1 + SHOWN], *rest))
    missing, counted = _compared(learner, changed, with_kernels, device)
    unchecked = ()
    if changed.number == "061" and not with_kernels:
        unchecked = (
            "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment "
            "before rosecourse is imported",
        )
    return replace(verdict, missing=missing, done=(*done, *counted), unchecked=unchecked)


def _play(learner: Learner, scenario: Scenario) -> tuple[Fault | None, int]:
    """What went wrong in a scenario, and how many steps it came to."""
    oracle = None
    try:
        oracle = (TableOracle if learner.kind == "block_tables" else Oracle)(learner, scenario.sizes)
        scenario.story(oracle)
    except PartIsWrong as wrong:
        where = f"{scenario.name} (step {oracle.steps})" if oracle and oracle.steps else scenario.name
        return replace(wrong.fault, tried=where), oracle.steps if oracle else 0
    except KVCacheExhausted as error:
        return Fault(f"blocks that were given back are not there any more: {error}", tried=scenario.name), oracle.steps
    return None, oracle.steps


def _compared(
    learner: Learner, changed: Lesson, with_kernels: bool, device: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the part does more often than the course's part, and what it does not, a sentence each."""
    course = getattr(changed.after, learner.kind)
    seen: dict[Situation, tuple[Seen, Seen]] = {}
    missing: dict[str, str] = {}  # the first of each kind says enough
    done = []
    for idea in ideas_until(changed, with_kernels):
        at = idea.situation
        if at not in seen:
            seen[at] = observe(learner, at, device), observe_course(course, learner.kind, at, device)
        found, right = map(idea.count, seen[at])
        if found > right:
            words = f"still {found} {idea.words} in {at}; the course's part of lesson {idea.lesson} makes {right}"
            missing.setdefault(idea.words, words)
        elif idea.lesson == changed.number:
            done.append(f"{at}: {found} {idea.words} (the course's part: {right})")
    return tuple(missing.values()), tuple(done)


@contextmanager
def _ours_as_they_were() -> Iterator[list[str]]:
    """Undo what a part has put over the methods of our classes; names what it was."""
    before = {ours: dict(vars(ours)) for ours in OURS}
    replaced: list[str] = []
    try:
        yield replaced
    finally:
        for ours, names in before.items():
            for name in sorted(set(names) | set(vars(ours))):
                if vars(ours).get(name) is not names.get(name):
                    replaced.append(f"{ours.__name__}.{name}")
                    setattr(ours, name, names[name]) if name in names else delattr(ours, name)
