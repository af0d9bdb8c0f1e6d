"""The change that a lesson makes, folded until the learner's own part has passed its check."""

from dataclasses import dataclass

from ...pages.source import diff_html
from ..checks.verdict import PASSED, lesson_with_a_part

SUMMARY = "The change: open it when you have tried, or let check pass"


@dataclass(frozen=True, repr=False)
class Change:
    """A lesson's diff. In a notebook it is folded until `check` has passed; a reader may open it at any time.

    number: of the lesson. diff: the source of its part before and after, as a unified diff.
    """

    number: str
    diff: str

    def __str__(self) -> str:
        return self.diff

    def __repr__(self) -> str:
        return f"the change of lesson {self.number}: {len(self.diff.splitlines())} lines"

    def _repr_html_(self) -> str:
        state = " open" if self.number in PASSED else ""
        return f"<details{state}><summary>{SUMMARY}</summary>{diff_html(self.diff)}</details>"


def change(lesson_number: str, *parts: str) -> Change:
    """What a lesson changes; parts: in these of its parts alone, such as `runner`.

    Raises `LessonError` for a lesson that is not there, or that replaces no part.
    """
    rung = lesson_with_a_part(lesson_number)
    return Change(rung.number, rung.diff(*parts))
