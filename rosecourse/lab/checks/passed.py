"""Which lessons `check` has passed in this process. A notebook is a process of its own."""

from __future__ import annotations

from ...errors import LessonError
from ...lessons import LESSONS, Lesson, lesson


class Passed:
    """The numbers of the lessons whose check a part has passed."""

    def __init__(self) -> None:
        self._numbers: set[str] = set()

    def add(self, number: str) -> None:
        self._numbers.add(number)

    def __contains__(self, number: str) -> bool:
        return number in self._numbers


PASSED = Passed()


def lesson_with_a_part(number: str) -> Lesson:
    """A lesson with a part to write. Raises `LessonError` for one that is not on the ladder, or replaces no part."""
    known = f"{number:0>3}" if isinstance(number, str) else number  # "36" is lesson 036
    rung = lesson(known)
    if not rung.changes:
        with_a_part = ", ".join(other.number for other in LESSONS if other.changes)
        raise LessonError(f"lesson {number!r} replaces no part: give one of {with_a_part}")
    return rung
