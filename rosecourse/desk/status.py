"""What pages say of the lessons and of the learner: the map and the progress on the start page, and a lesson's end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..lessons import ASIDES, LESSONS, lesson
from ..pages.say import Markdown, say
from ..records.results import RESULTS
from ..records.runs import recorded_comparison
from ..records.tables import markdown_table, named_cell, recorded_head, workloads_table
from .notebooks import DESK, NOTEBOOKS, Head, desk_here, heads_in, repository
from .noting import Done, my_progress, note

STEPS = {"built": "pass its check", "run": "measure your part", "found": "find its bug"}
OF_ASIDES = {"073": ("built", "found"), "074": ("built", "found"), "075": ("built",)}  # their pages time no part
NOT_KEPT = f"Progress is kept for your own copy of the notebooks, in `{DESK}/`. `make lab` opens it."


def lesson_map(folder: Path | None = None, results: Path = RESULTS) -> Markdown:
    """A table with a row for each lesson: what changes, how long it takes, and what it is worth, under which workload.

    folder: with the notebooks, whose heads give the minutes; None: that of the repository around this process. results:
    as for `recorded_comparison`. Raises `ConfigError` outside the course's repository.
    """
    heads = heads_in(folder or repository(Path.cwd()) / NOTEBOOKS)
    recordings = {rung.number: recorded_comparison(rung.number, folder=results) for rung in LESSONS}
    more = {one.number: [one.about, one.workload.name, named_cell(one, recordings[one.number])] for one in LESSONS}
    more |= {one.number: [one.about, "", ""] for one in ASIDES}
    rows = [["lesson", "minutes", "what changes", "workload", recorded_head(recordings.values())]]
    for head in heads:
        rows.append([head.link, str(head.minutes), *more.get(head.number, ["looks back over all of them", "", ""])])
    hours = round(sum(head.minutes for head in heads) / 60)
    said = f"The minutes are for reading, exercise and bug hunt: about {hours} hours in all."
    return Markdown(f"{markdown_table(rows)}\n{said}\n\n{workloads_table()}")


def my_status() -> Markdown:
    """The learner's progress, for the page that this process runs: a row for each lesson that is begun."""
    numbers = [rung.number for rung in (*LESSONS, *ASIDES)]
    lessons = [head for head in heads_in(repository(Path.cwd()) / NOTEBOOKS) if head.number in numbers]
    progress = my_progress()
    rows = [_row(head, progress[head.number]) for head in lessons if progress.get(head.number)]
    columns = ["lesson", "read", "part built", "last run against before", "bug found"]
    table = markdown_table([columns, *rows]) + "\n" if rows else ""
    read, built, found = (sum(what in done for done in progress.values()) for what in ("read", "built", "found"))
    unread = (f" Next: {one.number}, {one.title}." for one in lessons if "read" not in progress.get(one.number, {}))
    said = f"{read} of {len(lessons)} lessons read, {built} parts built, {found} bugs found.{next(unread, '')}"
    return Markdown(table + (said if desk_here() else NOT_KEPT))


def _row(head: Head, done: Done) -> list[str]:
    cells = {what: "✓" if what in done else "·" for what in ("read", *STEPS)}
    if "run" in done:
        cells["run"] = "{said} ({date})".format(**done["run"])
    asked = _asked(head.number)
    return [head.link, cells["read"], *(cells[what] if what in asked else "" for what in STEPS)]


def _asked(number: str) -> Iterable[str]:
    """The steps of a lesson, beside the reading."""
    if lesson(number) in ASIDES:
        return OF_ASIDES.get(number, ())
    return STEPS if lesson(number).changes else ()


def finish(number: str) -> None:
    """Note that a lesson was read to its end, and say what is still to do in it.

    Raises `LessonError` for a lesson that is not on the ladder.
    """
    rung = lesson(number)
    note(rung.number, "read")
    done = my_progress().get(rung.number, {})
    to_do = [STEPS[what] for what in _asked(rung.number) if what not in done]
    left = f"Still to do: {', '.join(to_do)}." if to_do else "You have done all of it. ✓"
    say(f"The end of lesson {rung.number}, {rung.title}.", left if desk_here() else NOT_KEPT)
