"""Recorded timelines: how data/results/<gpu>/<lesson>.timeline.json is written and read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..lessons import lesson as lesson_of
from ..measure.timeline import Timeline
from .archive import RESULTS, find, read, sealed

FORMAT = 1


UNITS = "tenths of a microsecond; kernels: number in kernel_names, start after the start of the one before, duration"


# -- taking one ---------------------------------------------------------------------------------------------------


# -- files --------------------------------------------------------------------------------------------------------


def path_of(folder: Path, number: str) -> Path:
    """The file of a lesson in the folder of a GPU."""
    return folder / f"{number}.timeline.json"


def sealed_document(head: Mapping[str, Any], timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    """What a file has: where it comes from, the timelines `before` (if there is one) and `after`, and a checksum."""
    sides = {side: timelines[side].document() if side in timelines else None for side in ("before", "after")}
    return sealed({**head, "format": FORMAT, "units": UNITS, **sides})


def load(path: Path, lesson: str) -> dict[str, Any]:
    """A file's document, checked. Raises `RosecourseError` for one that is damaged, of another lesson or format."""

    def parse(document: dict[str, Any]) -> dict[str, Any]:
        timelines_of(document)
        return document

    return read(path, "timeline", lesson, FORMAT, parse)


def timelines_of(document: Mapping[str, Any]) -> dict[str, Timeline]:
    """The timelines of a file, `before` (not for the first lesson) and `after`. Raises `ValueError`."""
    sides = ["before", "after"] if lesson_of(document["lesson"]).changes else ["after"]
    return {side: Timeline.of(document.get(side)) for side in sides}


def recorded(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> dict[str, Timeline] | None:
    """The recorded timelines of a lesson, `before` and `after` (the first lesson has no before), None without a file.

    gpu: a name such as `NVIDIA H200`, or the folder's, `nvidia-h200`; None is the course's own, else the first found.
    Raises `LessonError` for a lesson that is not on the ladder, `RosecourseError` for a file that is damaged.
    """
    number = lesson_of(lesson).number
    path = find(path_of(Path(), number).name, gpu, folder)
    return None if path is None else timelines_of(load(path, number))
