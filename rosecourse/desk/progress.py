"""What the learner has done, lesson by lesson, in `my/progress.json`.

It is stored only by a process that works in the learner's folder, `my/`: a notebook of the learner's copy, or a command
that is run there. A test, an author or a command elsewhere stores nothing, and needs no flag for that.

Of each thing done the first date is stored, and of the races the latest: the best of several would be a lucky one.
`noting.py` writes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from .places import desk_here

FILE = "progress.json"


@dataclass(frozen=True)
class RaceRun:
    """A race. said: how it ended, in words; date: of the race."""

    said: str
    date: str


@dataclass(frozen=True)
class Done:
    """What has been done of one lesson: dates such as 2026-11-23, empty where it is still to do.

    read: its last cell was reached. built: its check was passed. race: the latest of those since. found: its bug.
    """

    read: str = ""
    built: str = ""
    found: str = ""
    race: RaceRun | None = None

    def and_also(self, other: Done) -> Done:
        """Both together: the earlier dates, and the later race; `other`'s, of two of one day."""
        dates = {name: min(filter(None, (getattr(self, name), getattr(other, name))), default="") for name in DATES}
        races = [one.race for one in (other, self) if one.race is not None]
        return replace(self, **dates, race=max(races, key=lambda race: race.date, default=None))


DATES = tuple(each.name for each in fields(Done) if each.name != "race")


@dataclass(frozen=True)
class Progress:
    """What has been done, by the numbers of the lessons."""

    lessons: Mapping[str, Done] = field(default_factory=dict)

    def of(self, number: str) -> Done:
        """Of one lesson; nothing, for one that was not begun."""
        return self.lessons.get(number, Done())

    def with_(self, number: str, done: Done) -> Progress:
        """The same, and also this."""
        return Progress({**self.lessons, number: self.of(number).and_also(done)})

    @classmethod
    def parsed(cls, text: str) -> Progress:
        """Of a file's text. Raises `ValueError` for one that is damaged."""
        try:
            lessons = {str(number): _done(one) for number, one in json.loads(text)["lessons"].items()}
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return cls(lessons)

    def text(self) -> str:
        """For a file."""
        return json.dumps({"lessons": {n: asdict(one) for n, one in sorted(self.lessons.items())}}, indent=1) + "\n"


def _done(one: Mapping[str, Any]) -> Done:
    dates = {name: date.fromisoformat(one[name]).isoformat() if one.get(name) else "" for name in DATES}
    race = one.get("race")
    return Done(**dates, race=None if race is None else RaceRun(str(race["said"]), str(race["date"])))


def progress_in(folder: Path) -> Progress:
    """What is stored in the learner's folder. A damaged file is set aside, with a line on standard error.

    Raises `OSError` where the file cannot be read, or not be set aside.
    """
    path = folder / FILE
    try:
        return Progress.parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Progress()
    except ValueError:  # a damaged file, or one that is no text
        aside = path.with_name(f"progress.damaged.{datetime.now():%Y-%m-%d-%H%M%S}.json")
        path.rename(aside)
        tell(f"{folder.name}/{FILE} is damaged. It is {aside.name} now, and your progress begins anew.")
        return Progress()


def my_progress() -> Progress:
    """What is stored, if this process works in the learner's folder; nothing elsewhere, or if it cannot be read."""
    folder = desk_here()
    try:
        return Progress() if folder is None else progress_in(folder)
    except OSError as error:
        tell(f"Your progress cannot be read: {error}")
        return Progress()


def tell(line: str) -> None:
    """Say something about the file, beside what a cell shows."""
    print(line, file=sys.stderr)
