"""The end of a lesson: its last cell says that it was reached."""

from __future__ import annotations

from dataclasses import dataclass

from ..lessons import lesson
from ..pages.html import paragraph
from .noting import note_read
from .places import DESK, desk_here
from .progress import Done, my_progress
from .status import RACED_ON_A_GPU

NOT_KEPT = (
    f"In your own copy of the lessons, `{DESK}/`, this cell notes that you were here and says what is still to do. "
    "`make lab` opens that copy."
)


@dataclass(frozen=True, repr=False)
class Finished:
    """A lesson that was read to its end. to_do: what is still to be done in it; kept: whether progress is kept."""

    number: str
    title: str
    to_do: tuple[str, ...]
    kept: bool

    def __str__(self) -> str:
        end = f"The end of lesson {self.number}, {self.title}."
        if not self.kept:
            return f"{end} {NOT_KEPT}"
        return f"{end} Still to do: {', '.join(self.to_do)}." if self.to_do else f"{end} You have done all of it. ✓"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return paragraph(str(self))


def finish(number: str) -> Finished:
    """Note that a lesson was read to its end, and say what is still to do in it.

    Raises `LessonError` for a lesson that is not on the ladder.
    """
    rung = lesson(number)
    note_read(rung.number)
    done = my_progress().of(rung.number)
    return Finished(rung.number, rung.title, to_do(rung.number, done) if rung.changes else (), desk_here() is not None)


def to_do(number: str, done: Done) -> tuple[str, ...]:
    """What is still to do in a lesson that has an exercise, in order."""
    race = "race your part on a GPU" if number in RACED_ON_A_GPU else "race your part"
    steps = {"pass its check": done.built, race: done.race, "find its bug": done.found}
    return tuple(step for step, was_done in steps.items() if not was_done)
