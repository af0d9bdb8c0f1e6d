"""What a part is tried with: right first, then whether it has the lesson's idea."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from ...lessons import lesson
from ..world.causes import Cause
from ..world.error_reading import CannotTry
from ..world.fault import Fault, PartIsWrong
from ..world.kernel_memory import guarded_kernels
from ..world.oracle import Oracle
from ..world.patches import look_for_patches
from ..world.scenarios import SMALL, Scenario
from . import end_to_end
from .comparing import compare
from .diagnosis import Met, diagnosed
from .names_used import of_another_engine, used_instead
from .own_process import Report
from .silent_kernel import plainly
from .trial import Trial, trial_of
from .verdict import Verdict

SHOWN = 5  # faults; one is told in full, the others in a line each
QUIET = 0.05  # seconds between two signs of life: the process that waits reads each of them
ABOVE_ALL = (Cause.TAMPERING, Cause.EXITS)  # whatever else a part uses
NO_KERNELS = (
    "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)


def judged(part: type, number: str, report: Report) -> Verdict:
    """The verdict on a class as the part of a lesson. report(what, ...): what is begun and done, and signs of life.

    `begin`, with the name of the pieces of work and their number; `done`, after each of them; `alive`, before a call of
    the part, at most once in `QUIET` seconds.
    """
    trial = trial_of(part, lesson(number), _seldom(lambda: report("alive")))
    used = of_another_engine(trial)  # before a call leaves something of its own in a global
    with guarded_kernels() if trial.kernels_on == "cpu" else nullcontext():
        verdict = replace(_tried(trial, report), remarks=trial.learner.remarks())
    if used is None or verdict.cause in ABOVE_ALL:
        return verdict
    if verdict.faults:
        return replace(verdict, faults=(used_instead(trial, used), *verdict.faults))
    return replace(verdict, remarks=(*verdict.remarks, f"the class uses {used.words}: it will not be there elsewhere"))


def _seldom(say: Callable[[], object]) -> Callable[[], None]:
    """Calls a function, but not again before `QUIET` seconds have passed."""
    last, clock = -QUIET, time.monotonic

    def alive() -> None:
        nonlocal last
        now = clock()
        if now - last >= QUIET:
            last = now
            say()

    return alive


def _tried(trial: Trial, report: Report) -> Verdict:
    verdict = Verdict(trial.learner.part.__name__, trial.rung.number)
    try:
        done, faults = _lived_through(trial, report)
        if faults:
            return replace(verdict, faults=tuple(plainly(trial, diagnosed(trial, faults)[:SHOWN])))
        done.append(_in_an_engine(trial))
        compared = compare(trial, report)
        if not (compared.missing or compared.not_own):
            trial.course.world.oracle(trial.learner, SMALL).look_at_asked_methods()
    except PartIsWrong as wrong:
        return replace(verdict, faults=(wrong.fault,))
    except CannotTry as reason:
        return replace(verdict, unchecked=(str(reason),))
    if trial.device == "cpu":
        done += _seen_on_a_cpu(trial)
    if compared.counted:
        done.append(compared.counted)
    return replace(
        verdict,
        missing=compared.missing,
        partly=compared.partly,
        hint=compared.hint,
        not_own=compared.not_own,
        unchecked=(NO_KERNELS,) if trial.rung.kernels and not trial.kernels_on else (),
        done=tuple(done),
    )


def _seen_on_a_cpu(trial: Trial) -> list[str]:
    """What a check on a CPU has seen of kernels that a gate lets in, and what it cannot see."""
    course = trial.course
    if course.let_in and trial.kernels_on:
        return [f"{course.let_in}: Triton's interpreter runs them here", f"not to be seen on a CPU: {course.unseen}"]
    kernels = f"{course.let_in} (Triton needs a GPU, or TRITON_INTERPRET=1), and " if course.let_in else ""
    return [f"not to be seen on a CPU: {kernels}{course.unseen}"]


def _lived_through(trial: Trial, report: Report) -> tuple[list[str], list[Met]]:
    """What was tried, and the faults that were met."""
    scenarios = trial.course.world.scenarios_on(trial.kernels_on)
    met: list[Met] = []
    steps = 0
    report("begin", "scenarios", len(scenarios))
    for scenario in scenarios:
        found, made = _play(trial, scenario)
        report("done")
        steps += made
        met += [found] if found else []
        if _is_enough(trial, met) or (found and not made and scenario is scenarios[0]):
            break  # or it cannot be built or called at all
    return [f"{len(scenarios)} scenarios, {steps} steps: {trial.course.world.holds}"], met


def _is_enough(trial: Trial, met: list[Met]) -> bool:
    """Whether the faults decide the cause. That nothing is written, more than a part of it in no scenario, is not known
    before all are played."""
    return trial.is_enough(len(met)) and any(each.fault.cause is not Cause.NOTHING_WRITTEN for each in met)


def _play(trial: Trial, scenario: Scenario[Any]) -> tuple[Met | None, int]:
    """What went wrong in a scenario, and how many steps it came to."""
    oracle: Oracle | None = None
    fault = None
    try:
        oracle = trial.course.world.oracle(trial.learner, scenario.sizes)
        scenario.story(oracle)
    except PartIsWrong as wrong:
        fault = wrong.fault
    except CannotTry:
        raise
    except Exception as error:  # the part has left something that cannot even be read
        what = f"after the part the pool cannot be used any more: {type(error).__name__}: {error}"
        fault = Fault(what, cause=Cause.BOOKS_WRONG)
    try:
        look_for_patches()
    except PartIsWrong as wrong:  # whatever else was wrong comes of it
        fault = wrong.fault
    steps = oracle.steps if oracle else 0
    where = f"{scenario.name} (step {steps})" if steps else scenario.name
    if not fault:
        return None, steps
    forked, freed = (oracle.forked, bool(oracle.freed)) if oracle else (False, False)
    return Met(scenario, replace(fault, tried=where), forked, freed), steps


def _in_an_engine(trial: Trial) -> str:
    whole = trial.course.world.whole
    name = whole.name if whole else end_to_end.NAME
    try:
        return whole.play(trial.learner, trial.parts_with) if whole else end_to_end.same_tokens(trial)
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=name)) from None
    except CannotTry:
        raise
    except Exception as error:  # after the part the engine itself cannot go on
        what = f"the engine stopped: {type(error).__name__}: {error}"
        raise PartIsWrong(Fault(what, tried=name, cause=Cause.BOOKS_WRONG)) from None
