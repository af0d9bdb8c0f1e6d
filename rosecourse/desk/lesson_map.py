"""The map of the lessons, as the start page shows it."""

from __future__ import annotations

from pathlib import Path

from ..lessons import LESSONS
from ..records.comparisons import recorded_comparison
from ..records.results import RESULTS
from ..records.tables import named_cell, recorded_head, workloads_table
from .notebooks import head_of, lessons_in
from .places import END, NOTEBOOKS, repository

NO_BREAK = "\u00a0"  # a space at which a narrow column does not wrap: a ratio and its interval stay together


class LessonMap:
    """A table with a row for each lesson: what changes, how long it takes, and what it is worth, under which workload.

    Below it are the workloads.

    folder: with the notebooks, whose heads give the minutes. results: as for `recorded_comparison`.
    """

    def __init__(self, folder: Path, results: Path = RESULTS) -> None:
        self.heads = {head.number: head for head in lessons_in(folder)}
        self.rungs = [rung for rung in LESSONS if rung.number in self.heads]
        self.end = head_of(folder / END) if (folder / END).is_file() else None
        self.recordings = {rung.number: recorded_comparison(rung.number, folder=results) for rung in self.rungs}

    def rows(self) -> list[list[str]]:
        """Lesson, what changes, minutes to read, to build and to hunt, workload and recorded figure of each rung."""
        rows = []
        for rung in self.rungs:
            head = self.heads[rung.number]
            minutes = [str(n) if n else "" for n in (head.reading, head.exercise, head.hunt)]
            figure, colon, rest = named_cell(rung, self.recordings[rung.number]).partition(": ")
            ratio, bracket, note = rest.partition(" (")
            worth = figure + colon + ratio.replace(" ", NO_BREAK) + bracket + note
            rows.append([f"[{head.number} {head.title}]({head.file})", rung.about, *minutes, rung.workload.name, worth])
        return rows

    def last_row(self) -> list[str]:
        """Of the page that looks back, which is no rung; empty where there is none."""
        if self.end is None:
            return []
        link = f"[{self.end.number} {self.end.title}]({self.end.file})"
        return [link, "looks back over all of them", str(self.end.reading), "", "", "", ""]

    def summary(self) -> str:
        """How long all of it takes."""
        heads = [*self.heads.values(), *([self.end] if self.end else [])]
        minutes = [(head.reading, head.exercise, head.hunt) for head in heads]
        reading, building, hunting = (round(sum(each) / 60) for each in zip(*minutes, strict=True))
        return f"In all about {reading} hours to read, {building} to build and {hunting} to hunt."

    def __str__(self) -> str:
        worth = recorded_head(self.recordings.values())
        header = ["lesson", "what changes", "minutes to read", "to build", "to hunt", "workload", worth]
        rows = [header, ["---"] * 2 + ["---:"] * 3 + ["---"] * 2, *self.rows(), self.last_row()]
        table = [f"| {' | '.join(row)} |" for row in rows if row]
        return "\n".join([*table, "", self.summary(), "", workloads_table()])

    __repr__ = _repr_markdown_ = __str__


def lesson_map() -> LessonMap:
    """The map for a notebook. Raises `ConfigError` outside the course's repository."""
    return LessonMap(repository(Path.cwd()) / NOTEBOOKS)
