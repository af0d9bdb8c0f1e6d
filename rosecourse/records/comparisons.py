"""Recorded comparisons: how data/results/<gpu>/<lesson>.json is read.

A file is one sealed JSON object (`sealed`), and `RECORDING` names its keys. `before` and `after` are lists of runs
(`run_json`), in pairs, in the order of measuring; `before` is empty for the first lesson, which changes nothing.
`copy_bytes_per_second` is the copy bandwidth that was measured beside them, and a run's `decode_bytes` is what its
decode steps must at least read: together they give the floor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

from ..lessons import lesson as lesson_of
from ..measure.compare import Comparison, Conditions
from ..measure.floor import share_of_runs
from ..measure.samples import Samples
from .results import RESULTS, results_file
from .run_json import PACKED_RUN, unpacked_run
from .sealed import read_sealed, require_form

FORMAT = 1

RECORDING = {  # see `sealed.require_form`
    "format": int,
    "lesson": str,
    "title": str,
    "command": str,
    "date": str,
    "commit": (str, NoneType),
    "dirty": (bool, NoneType),
    "host": {"cpu": str, "gpu": (str, NoneType), "driver": (str, NoneType)},
    "versions": {"torch": (str, NoneType)},
    "settings": {
        "benchmark": str,
        "num_requests": int,
        "max_new_tokens": int,
        "max_batch_size": int,
        "block_size": int,
        "model": str,
        "dtype": str,
    },
    "units": str,
    "definitions": dict,
    "same_tokens": bool,
    "copy_bytes_per_second": float,
    "before": [PACKED_RUN],
    "after": [PACKED_RUN],
    "sha256": str,
}


@dataclass(frozen=True)
class RecordedComparison(Comparison):
    """A comparison that was read from a file. document: all that the file says, such as commit, command and host."""

    document: dict[str, Any] = field(repr=False)

    @classmethod
    def of(cls, document: dict[str, Any]) -> RecordedComparison:
        """Of a document of the form `RECORDING`. Raises `ValueError` where its runs do not fit together."""
        before, after = (Samples(side, [unpacked_run(run) for run in document[side]]) for side in ("before", "after"))
        changes = lesson_of(document["lesson"]).changes
        if not after.runs or len(before.runs) != (len(after.runs) if changes else 0):
            raise ValueError("the runs are not in pairs")
        if document["copy_bytes_per_second"] <= 0:
            raise ValueError("the copy bandwidth is not positive")
        return cls(before, after, _conditions(document, after), document)

    @property
    def same_tokens(self) -> bool:
        """Whether all runs, before and after, made the same tokens; in float16 rounding may differ."""
        return self.document["same_tokens"]

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the source, the date and the command."""
        known = self.document
        driver = [f"driver {known['host']['driver']}"] if known["host"]["driver"] else []
        versions = [f"{name} {version}" for name, version in known["versions"].items() if version]
        command = f"`{known['command']}`"
        return ", ".join([self.conditions.device, *driver, *versions, self.source, known["date"], command])

    @property
    def source(self) -> str:
        """The commit, and whether what is measured had been changed since."""
        commit, dirty = self.document["commit"], self.document["dirty"]
        changes = {True: " with changes", False: "", None: " (changes unknown)"}[dirty]
        return f"commit {commit[:12]}{changes}" if commit else "commit unknown"

    def share_of_floor(self, side: Literal["before", "after"]) -> float:
        """The least time that the decode steps could take / the time that they took: the runs' median, NaN without."""
        num_bytes = [run["decode_bytes"] for run in self.document[side]]
        return share_of_runs(getattr(self, side).runs, num_bytes, self.document["copy_bytes_per_second"])

    def rows(self) -> dict[str, tuple[float, float, str]]:
        """The rows of any comparison, and the shares of the floor."""
        before, after = 100 * self.share_of_floor("before"), 100 * self.share_of_floor("after")
        return super().rows() | {"share of the floor (%)": (before, after, "")}


def _conditions(document: dict[str, Any], after: Samples) -> Conditions:
    settings, host = document["settings"], document["host"]
    return Conditions(
        requests=len(after.runs[0].times),
        tokens=after.runs[0].num_tokens,
        prompt_tokens=None,
        block_size=settings["block_size"],
        rounds=len(after.runs),
        model=settings["model"],
        dtype=settings["dtype"],
        device=host["gpu"] or host["cpu"],  # the runs were on the CPU where no GPU is named
        torch=document["versions"]["torch"] or "of unknown version",
    )


def read_comparison_file(path: Path, lesson: str) -> RecordedComparison:
    """A recorded file, checked. Raises `RosecourseError` if it is damaged, or of another lesson or format."""

    def parse(document: dict[str, Any]) -> RecordedComparison:
        require_form(document, RECORDING, "the document")
        return RecordedComparison.of(document)

    return read_sealed(path, "recorded", lesson, FORMAT, parse)


def recorded_comparison(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> RecordedComparison | None:
    """The recorded comparison of a lesson, or None where there is none; its arguments are those of `results_file`.

    Raises `LessonError` for a lesson that is not on the ladder, `RosecourseError` for a file that is damaged.
    """
    number = lesson_of(lesson).number
    path = results_file(f"{number}.json", gpu, folder)
    return None if path is None else read_comparison_file(path, number)
