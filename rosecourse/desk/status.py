"""The learner's progress as a table: on the start page, and on the terminal by `rosecourse lab --status`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .notebooks import Head, lessons_in
from .places import DESK, NOTEBOOKS, desk_here, repository
from .progress import Done, Progress, my_progress, progress_in

COLUMNS = ("lesson", "read", "part built", "last race against before", "bug found")
DONE, TO_DO = "✓", "·"
RACED_ON_A_GPU = ("061",)  # alone: on a CPU its change is below the threshold, as its notebook says
Name = Callable[[Head, str], str]
NOT_KEPT = f"Progress is kept for your own copy of the notebooks, in {DESK}/. `make lab` opens it."


def _plain(head: Head, between: str) -> str:
    return f"{head.number}{between}{head.title}"


def _linked(head: Head, between: str) -> str:
    return f"[{_plain(head, between)}]({head.file})"


@dataclass(frozen=True, repr=False)
class Status:
    """How far the learner has come. lessons: all that there are, in order. kept: whether progress is kept at all."""

    progress: Progress
    lessons: Sequence[Head]
    kept: bool = True

    def rows(self, name: Name = _plain) -> list[list[str]]:
        """A row for each lesson, under `COLUMNS`; a cell is empty where the lesson has no such thing."""
        return [[name(head, " "), *_cells(head, self.progress.of(head.number))] for head in self.lessons]

    def summary(self, name: Name = _plain) -> str:
        """How much of all is done, and what comes next. name: writes a lesson's number and title, with what between."""
        if not self.kept:
            return NOT_KEPT
        done = [self.progress.of(head.number) for head in self.lessons]
        read = f"{sum(bool(one.read) for one in done)} of {len(done)} lessons read"
        parts, bugs = (sum(map(bool, n)) for n in zip(*((h.exercise, h.hunt) for h in self.lessons), strict=True))
        built = f"{sum(bool(one.built) for one in done)} of {parts} parts built"
        found = f"{sum(bool(one.found) for one in done)} of {bugs} bugs found"
        unread = [head for head, one in zip(self.lessons, done, strict=True) if not one.read]
        after = f" Next: {name(unread[0], ', ')}." if unread else ""
        return f"{read}, {built}, {found}.{after}"

    def __str__(self) -> str:
        table = [COLUMNS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "\n".join([*lines, "", self.summary()])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        rows = [COLUMNS, ["---"] * len(COLUMNS), *self.rows(_linked)]
        return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", self.summary(_linked)])


def my_status() -> Status:
    """The learner's progress, for the page that this process runs; an empty table outside the learner's folder."""
    return Status(my_progress(), lessons_in(repository(Path.cwd()) / NOTEBOOKS), desk_here() is not None)


def status_of(root: Path) -> Status:
    """The learner's progress in a repository. Raises `OSError` where it cannot be read."""
    return Status(progress_in(root / DESK), lessons_in(root / NOTEBOOKS), (root / DESK).is_dir())


def _cells(head: Head, done: Done) -> list[str]:
    to_do = "on a GPU" if head.number in RACED_ON_A_GPU else TO_DO
    race = f"{done.race.said} ({done.race.date})" if done.race else to_do
    building = [_mark(done.built), race] if head.exercise else ["", ""]
    return [_mark(done.read), *building, _mark(done.found) if head.hunt else ""]


def _mark(date: str) -> str:
    return DONE if date else TO_DO
