"""The ladder of lessons, and the superseded versions of the parts that they replaced."""

from .ladder import BASELINE, LESSONS, Lesson, lesson

__all__ = ["BASELINE", "LESSONS", "Lesson", "lesson"]
