"""A trial: the learner's class at a lesson, on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...decode import DecodeParts
from ...errors import LessonError
from ...kernels import triton_runs_on
from ...lessons import LESSONS, Lesson, lesson
from ..course import COURSES, course_of
from ..course.form import Course
from ..world.learner import Learner
from .by_value import copies_of


@dataclass(frozen=True)
class Trial:
    """What is tried. kernels_on: the device on which kernels run; None if the course counts none, or none run.
    fresh: returns a copy of the class as it was before anything was made of it; None if it cannot be copied.
    """

    learner: Learner
    rung: Lesson
    course: Course
    kernels_on: str | None
    fresh: Callable[[], type] | None

    @property
    def device(self) -> str:
        return self.kernels_on or "cpu"

    @property
    def keeps_rows(self) -> bool:
        """Whether the part keeps rows from step to step by design."""
        return self.course.world.oracle.keeps_rows

    @property
    def has_limits(self) -> bool:
        """Whether the part may be right up to some size of the pool."""
        return self.course.world.oracle.has_limits

    def is_enough(self, met: int) -> bool:
        """Whether so many faults decide the cause."""
        enough = self.course.world.oracle.enough
        return enough is not None and met >= enough

    def parts_with(self, part: Any) -> DecodeParts:
        """The parts after the lesson, with another one in the place of the lesson's own."""
        world = self.course.world
        return world.engine(self.rung.after.with_(**{world.part: part}), torch.device(self.device))


def lesson_with_a_part(number: str) -> Lesson:
    """A lesson with a part to write. Raises `LessonError` for one that is not on the ladder, or replaces no part."""
    rung = lesson(number)
    if not rung.changes:
        known = ", ".join(other.number for other in LESSONS if other.number in COURSES)
        raise LessonError(f"lesson {number!r} replaces no part: give one of {known}")
    return rung


def runs_kernels_on(rung: Lesson) -> str | None:
    """The device on which the kernels of a lesson or of its course run; None if there are none, or none run."""
    ideas = course_of(rung.number).ideas
    device = "cuda" if torch.cuda.is_available() else "cpu"
    has_kernels = bool(rung.kernels) or any(idea.situation.with_kernels for idea in ideas)
    return device if has_kernels and triton_runs_on(torch.device(device)) else None


def trial_of(part: type, rung: Lesson, alive: Callable[[], object] = lambda: None) -> Trial:
    """A class at a lesson, on the GPU if lesson or course has kernels and there is one. alive: as of a `Learner`."""
    course = course_of(rung.number)
    learner = Learner(part, course.world.called_with, alive)
    return Trial(learner, rung, course, runs_kernels_on(rung), copies_of(part))
