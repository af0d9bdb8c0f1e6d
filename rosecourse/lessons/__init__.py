"""The ladder of lessons, and the superseded versions of the parts that they replaced."""

from .ladder import ASIDES, BASELINE, LESSONS, Lesson, lesson

__all__ = ["ASIDES", "BASELINE", "LESSONS", "Lesson", "lesson"]
