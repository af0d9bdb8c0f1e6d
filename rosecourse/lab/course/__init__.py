"""The courses: what each lesson asks of the learner, its bug to hunt, and what its idea takes out of a step."""

from .registry import COURSES, course_of

__all__ = ["COURSES", "course_of"]
