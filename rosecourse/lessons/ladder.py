"""The ladder: each lesson is the one before it with one part of the decode step replaced."""

from __future__ import annotations

from dataclasses import dataclass

from ..decode import BEST, DecodeParts
from ..errors import LessonError


@dataclass(frozen=True)
class Lesson:
    """One rung: the parts of the engine after the lesson."""

    number: str  # as in the series, such as "035"
    title: str
    parts: DecodeParts


LESSONS = [Lesson("035", "paged decode baseline", BEST)]


def lesson(number: str) -> Lesson:
    """The lesson with a number, or the last one for `best`. Raises `LessonError` for one that is not there."""
    if number == "best":
        return LESSONS[-1]
    for rung in LESSONS:
        if rung.number == number:
            return rung
    known = ", ".join(rung.number for rung in LESSONS)
    raise LessonError(f"there is no lesson {number!r}: give one of {known}, or best")
