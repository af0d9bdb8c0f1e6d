"""Recorded timelines of a lesson: of the kind of step that it is about, before and after it."""

from __future__ import annotations

from pathlib import Path

from ..errors import LessonError
from ..lessons import lesson as lesson_of
from ..lessons.workloads import name_of_steps
from ..measure.timeline import STEP_KINDS, Timeline
from .names import number_before
from .results import RESULTS, require_known
from .steps import steps_with


def recorded_timelines(
    lesson: str, step: str | None = None, gpu: str | None = None, folder: Path = RESULTS
) -> dict[str, Timeline] | None:
    """The recorded timelines `before` (not for the first lesson) and `after`, or None where there are none.

    They are of the lesson's own workload. step: the kind of step, a key of `STEP_KINDS`; None is the one that the
    lesson is about. gpu and folder: as for `results_file`. Raises `LessonError` for a lesson that is not on the ladder,
    and where both sides run the same code on such a step; `RosecourseError` for a file that is damaged.
    """
    rung = lesson_of(lesson)
    kind = rung.step_kind if step is None else step
    require_known(kind, list(STEP_KINDS), "kind of step")
    before = number_before(rung.number)
    both = {before or rung.number, rung.number}
    found = steps_with(both, name_of_steps(rung.workload), kind, gpu, folder)
    if found is None:
        return None
    if before is None:
        return {"after": found.timelines[rung.number][kind]}
    if found.same_code(before, rung.number, rung.counted, kind):
        raise LessonError(
            f"lesson {rung.number} runs the same code before and after on a step {STEP_KINDS[kind]}: there is nothing "
            "to show"
        )
    return {"before": found.timelines[before][kind], "after": found.timelines[rung.number][kind]}
