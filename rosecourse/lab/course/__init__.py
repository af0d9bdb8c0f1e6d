"""The courses by their lessons' numbers: what each lesson asks of the learner, its bug to hunt, what its idea is."""

from importlib import import_module
from pathlib import Path

from ...errors import LessonError
from .form import Course

# Every l*.py of this folder is a lesson's course, in the order of the ladder.
_NAMES = sorted(path.stem for path in Path(__file__).parent.glob("l[0-9]*.py"))
COURSES: dict[str, Course] = {name[1:]: import_module(f".{name}", __package__).COURSE for name in _NAMES}


def course_of(number: str, wanted: str = "course") -> Course:
    """The course of a lesson. Raises `LessonError` for a lesson without one; wanted: what it is asked for."""
    if number not in COURSES:
        raise LessonError(f"lesson {number!r} has no {wanted}: give one of {', '.join(COURSES)}")
    return COURSES[number]
