"""The ladder of lessons, and the superseded versions of the parts that they replaced."""

from .ladder import LESSONS, Lesson, lesson

__all__ = ["LESSONS", "Lesson", "lesson"]
