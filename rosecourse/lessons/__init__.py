"""The ladder of lessons, and the superseded versions of the parts that they replaced."""

from .ladder import ASIDE, BASELINE, LESSONS, Lesson, lesson

__all__ = ["ASIDE", "BASELINE", "LESSONS", "Lesson", "lesson"]
