"""The courses by their lessons' numbers. A lesson is on the ladder, and has its course here."""

from __future__ import annotations

from ...errors import LessonError
from . import l036, l038, l059, l060, l061
from .form import Course

COURSES: dict[str, Course] = {
    one.COURSE.number: one.COURSE for one in (l036, l038, l059, l060, l061)
}  # in the order of the ladder


def course_of(number: str, wanted: str = "course") -> Course:
    """The course of a lesson. Raises `LessonError` for a lesson without one; wanted: what it is asked for."""
    if number not in COURSES:
        raise LessonError(f"lesson {number!r} has no {wanted}: give one of {', '.join(COURSES)}")
    return COURSES[number]
