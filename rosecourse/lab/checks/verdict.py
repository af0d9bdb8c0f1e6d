"""What `check` answers: the smallest story in which a part goes wrong, what its steps cost, or that it has passed."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby

from ...errors import LessonError
from ...lessons import LESSONS, Lesson, lesson
from ...pages.html import bullets, headline, paragraph
from ..checking.search import Outcome

PASSED: set[str] = set()  # the numbers of the lessons that a part has passed in this process, such as a notebook's


@dataclass(frozen=True, repr=False)
class Verdict:
    """What was found out about a part. The same part gives the same text.

    wrong: the smallest story in which it goes wrong. missing: what its steps have more of than the course's. unchecked:
    what could not be tried on this machine. done: what was tried and is right, and what cannot be seen here.
    """

    part: str
    lesson: str
    wrong: Outcome | None = None
    missing: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    done: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether the part does what a part of its kind has to do, with the lesson's idea or without it."""
        return self.wrong is None

    @property
    def passed(self) -> bool:
        """Whether it is correct, has the lesson's idea, and everything could be tried."""
        return not (self.wrong or self.missing or self.unchecked)

    def __str__(self) -> str:
        body = [*self._story(), *(f"Correct, but {line}." for line in self.missing)]
        body += [*self.done, *(f"Not checked: {line}" for line in self.unchecked)] if self.correct else []
        return "\n".join([self._headline(), *(f"  {line}" for line in body)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        page = headline(self._headline())
        if self.wrong:
            story = "\n".join(self._story())
            page += f"<pre>{escape(story)}</pre>"
        else:
            page += bullets(self.done) + "".join(paragraph(f"Correct, but {line}.") for line in self.missing)
            page += "".join(paragraph(line, "Not checked:") for line in self.unchecked)
        return page

    def _headline(self) -> str:
        name = f"{self.part}, lesson {self.lesson}"
        if self.wrong:
            return f"✗ {name}: not right yet."
        if self.missing:
            return f"✗ {name}: correct, but without the idea of the lesson."
        if self.unchecked:
            return f"? {name}: correct as far as it could be tried here."
        return f"✓ {name}: passed."

    def _story(self) -> Iterator[str]:
        wrong = self.wrong
        if wrong is None:
            return
        if wrong.lines:
            of = f" ({wrong.sizes})" if wrong.sizes else ""
            yield f"The smallest story that goes wrong{of}:"
            yield from (f"    {line}" for line in _counted(wrong.lines))
        yield from wrong.fact.splitlines()
        if wrong.place:
            yield f"in {wrong.place}"
        yield from (f"    {line}" for line in wrong.picture)


def _counted(lines: tuple[str, ...]) -> list[str]:
    counted = [(line, len(list(same))) for line, same in groupby(lines)]
    shown = [f"{line}, {times} times" if times > 1 else line for line, times in counted]
    return [*shown[:-1], f"{shown[-1]}   <- here"]


def lesson_with_a_part(number: str) -> Lesson:
    """A lesson with a part to write. Raises `LessonError` for one that is not on the ladder, or replaces no part."""
    known = f"{number:0>3}" if isinstance(number, str) else number  # "36" is lesson 036
    rung = lesson(known)
    if not rung.changes:
        with_a_part = ", ".join(other.number for other in LESSONS if other.changes)
        raise LessonError(f"lesson {number!r} replaces no part: give one of {with_a_part}")
    return rung
