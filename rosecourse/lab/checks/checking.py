"""`check`: is the learner's class the lesson's part? Right first, then whether it has the lesson's idea."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...lessons import Lesson
from ...measure.progress import progress
from ..world.fault import Fault, PartIsWrong
from ..world.oracle import Oracle
from ..world.scenarios import Scenario
from . import end_to_end
from .comparing import compare
from .passed import PASSED
from .silent_kernel import plainly
from .trial import Trial, lesson_with_a_part, trial_of
from .verdict import Verdict

SHOWN = 5  # faults; one is told in full, the others in a line each
NO_KERNELS = (
    "the kernels. Triton cannot launch them here: use a GPU, or set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)


def check(part: type, lesson_number: str) -> Verdict:
    """Try a class as the part that a lesson replaces. lesson_number: as on the ladder, a text.

    The part lives through scenarios over a real pool in which every number is known, then makes tokens in a whole
    engine, and at last is counted beside the course's part. Takes a few seconds on a CPU; the same class gets the same
    verdict. Once it has passed, `change` shows the lesson's diff unfolded. Raises `LessonError` for a lesson that is
    not there, or has no part to write.
    """
    rung = lesson_with_a_part(lesson_number)
    if not isinstance(part, type):
        return _no_class(part, rung)
    trial = trial_of(part, rung)
    verdict = replace(_tried(trial), remarks=trial.learner.remarks())
    if verdict.passed:
        PASSED.add(rung.number)
    return verdict


def _no_class(part: Any, rung: Lesson) -> Verdict:
    given = f"an object of {type(part).__name__}"
    fault = Fault(f"check wants the class itself: check(MyPart, {rung.number!r}), not {given}")
    return Verdict("this", rung.number, (fault,))


def _tried(trial: Trial) -> Verdict:
    verdict = Verdict(trial.learner.part.__name__, trial.rung.number)
    try:
        done, faults = _lived_through(trial)
        if faults:
            return replace(verdict, faults=tuple(plainly(trial, faults)))
        done.append(_in_an_engine(trial))
        compared = compare(trial)
    except PartIsWrong as wrong:
        return replace(verdict, faults=(wrong.fault,))
    if trial.kernels_on == "cpu" and trial.course.unseen and not compared.missing:
        done.append(f"not to be seen in Triton's interpreter: {trial.course.unseen}")
    if compared.counted:
        done.append(compared.counted)
    return replace(
        verdict,
        missing=compared.missing,
        partly=compared.partly,
        hint=compared.hint,
        unchecked=(NO_KERNELS,) if trial.rung.kernels and not trial.kernels_on else (),
        done=tuple(done),
    )


def _lived_through(trial: Trial) -> tuple[list[str], list[Fault]]:
    """What was tried, and the first faults."""
    scenarios = trial.course.world.scenarios_on(trial.kernels_on)
    faults, steps = [], 0
    with progress("scenarios", len(scenarios)) as advance:
        for scenario in scenarios:
            fault, made = _play(trial, scenario)
            advance()
            steps += made
            faults += [fault] if fault else []
            # Enough, or it cannot be built or called at all, or each would take as long.
            if len(faults) == SHOWN or (fault and (fault.ends or not made)):
                break
    tried = f"{len(scenarios)} scenarios, {steps} steps: every number in its place, every block with its owners"
    return [tried], faults


def _play(trial: Trial, scenario: Scenario[Any]) -> tuple[Fault | None, int]:
    """What went wrong in a scenario, and how many steps it came to."""
    oracle: Oracle | None = None
    fault = None
    try:
        oracle = trial.course.world.oracle(trial.learner, scenario.sizes)
        scenario.story(oracle)
    except PartIsWrong as wrong:
        fault = wrong.fault
    except Exception as error:  # the part has left something that cannot even be read
        fault = Fault(f"after the part the pool cannot be used any more: {type(error).__name__}: {error}")
    steps = oracle.steps if oracle else 0
    where = f"{scenario.name} (step {steps})" if steps else scenario.name
    return (replace(fault, tried=where) if fault else None), steps


def _in_an_engine(trial: Trial) -> str:
    try:
        return end_to_end.same_tokens(trial)
    except PartIsWrong as wrong:
        raise PartIsWrong(replace(wrong.fault, tried=end_to_end.NAME)) from None
    except Exception as error:  # after the part the engine itself cannot go on
        what = f"the engine stopped: {type(error).__name__}: {error}"
        raise PartIsWrong(Fault(what, tried=end_to_end.NAME)) from None
