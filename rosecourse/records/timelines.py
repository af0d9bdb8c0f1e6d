"""Recorded timelines: how data/results/<gpu>/<lesson>.timeline.json is written and read.

A file is one sealed JSON object (`sealed`), with the keys of a recorded comparison that say where it comes from, and
`before` (null for the first lesson) and `after`, each of the form that `Timeline.document` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..lessons import lesson as lesson_of
from ..measure.timeline import Timeline
from .results import RESULTS, results_file
from .sealed import read_sealed, seal

FORMAT = 1
UNITS = "tenths of a microsecond; kernels: number in kernel_names, start after the start of the one before, duration"


def timelines_file_name(number: str) -> str:
    """The name of a lesson's file of timelines."""
    return f"{number}.timeline.json"


def timelines_document(head: Mapping[str, Any], timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """A file's document, sealed. head: where it comes from; timelines: `before`, unless there is none, and `after`."""
    sides = {side: timelines[side].document() if side in timelines else None for side in ("before", "after")}
    return seal({**head, "format": FORMAT, "units": UNITS, **sides})


def timelines_in(document: Mapping[str, Any]) -> dict[str, Timeline]:
    """The timelines in a file's document: `before` (not for the first lesson) and `after`. Raises `ValueError`."""
    sides = ["before", "after"] if lesson_of(document["lesson"]).changes else ["after"]
    return {side: Timeline.of(document.get(side)) for side in sides}


def read_timelines_file(path: Path, lesson: str) -> dict[str, Any]:
    """A file's document, checked. Raises `RosecourseError` if it is damaged, or of another lesson or format."""

    def parse(document: dict[str, Any]) -> dict[str, Any]:
        timelines_in(document)
        return document

    return read_sealed(path, "timeline", lesson, FORMAT, parse)


def recorded_timelines(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> dict[str, Timeline] | None:
    """The recorded timelines of a lesson, `before` (not for the first lesson) and `after`, or None without a file.

    Its arguments are those of `results_file`. Raises `LessonError` for a lesson that is not on the ladder,
    `RosecourseError` for a file that is damaged.
    """
    number = lesson_of(lesson).number
    path = results_file(timelines_file_name(number), gpu, folder)
    return None if path is None else timelines_in(read_timelines_file(path, number))
