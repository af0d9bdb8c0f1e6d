"""What recorded runs say of a lesson: before and after it, under its article's workload and under mixed traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from ..lessons import lesson as lesson_of
from ..lessons.workloads import ARTICLES
from ..measure.compare import Comparison, Ladder
from ..measure.samples import Samples
from ..measure.traffic import TrafficComparison
from .names import BURST, LOAD, load_of, name_from, names_of, number_before
from .recordings import Recording, recording_of
from .results import RESULTS, require_known

WORKLOADS = (*ARTICLES, BURST, LOAD)


@dataclass(frozen=True)
class RecordedComparison(Comparison):
    """Two neighbouring rungs of a recording, as a comparison.

    recording: where they were read, with all other rungs. numbers: of the two lessons, by side; only `after` for the
    first lesson.
    """

    recording: Recording = field(repr=False)
    numbers: Mapping[str, str]

    @classmethod
    def of(cls, recording: Recording, before: str | None, after: str) -> RecordedComparison:
        """Of two rungs of a recording; before: None for the first lesson, which has none."""
        numbers = ({} if before is None else {"before": before}) | {"after": after}
        earlier = Samples("before", [] if before is None else recording.rungs[before].runs)
        return cls(earlier, Samples("after", recording.rungs[after].runs), recording.conditions, recording, numbers)

    @property
    def document(self) -> dict[str, Any]:
        """All that the file says."""
        return self.recording.document

    @property
    def same_tokens(self) -> bool:
        """Whether all runs of all rungs made the same tokens; in float16 rounding may differ."""
        return self.conditions.same_tokens

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the source, the date and the command."""
        return self.recording.provenance

    @property
    def source(self) -> str:
        """The commit, and whether what is measured had been changed since."""
        return self.recording.source

    def share_of_floor(self, side: Literal["before", "after"]) -> float:
        """The least time that the decode steps could take / the time that they took: the runs' median, NaN without."""
        number = self.numbers.get(side)
        return float("nan") if number is None else self.recording.share_of_floor(number)

    def rows(self) -> dict[str, tuple[float, float, str]]:
        """The rows of any comparison, and the shares of the floor."""
        before, after = 100 * self.share_of_floor("before"), 100 * self.share_of_floor("after")
        return super().rows() | {"share of the floor (%)": (before, after, "")}


@dataclass(frozen=True)
class RecordedLadder(Ladder):
    """All rungs of a recording. Its rungs are named by the numbers of their lessons."""

    recording: Recording = field(repr=False)

    @classmethod
    def of(cls, recording: Recording) -> RecordedLadder:
        """Of all rungs of a recording."""
        titles = [recording.document["titles"][number] for number in recording.rungs]
        return cls(list(recording.rungs.values()), titles, recording.conditions, recording)

    @property
    def document(self) -> dict[str, Any]:
        """All that the file says."""
        return self.recording.document

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the source, the date and the command."""
        return self.recording.provenance

    @property
    def shares_of_floor(self) -> list[float]:
        """Of each rung: the least time that its decode steps could take / the time that they took."""
        return [self.recording.share_of_floor(rung.name) for rung in self.rungs]

    def table(self) -> pd.DataFrame:
        """One row for each rung, with its share of the floor. Its `attrs` hold the provenance."""
        table = super().table()
        table["share of the floor (%)"] = [100 * share for share in self.shares_of_floor]
        return table


def recorded_comparison(
    lesson: str, workload: str | None = None, gpu: str | None = None, folder: Path = RESULTS
) -> RecordedComparison | None:
    """The recorded runs before and after a lesson, or None where no file has both.

    workload: one of `WORKLOADS`; None is the lesson's own, its article's. gpu and folder: as for `results_file`. Raises
    `LessonError` for a lesson that is not on the ladder, `ConfigError` for an unknown workload, and `RosecourseError`
    for a file that is damaged.
    """
    rung = lesson_of(lesson)
    name = rung.workload.name if workload is None else workload
    require_known(name, WORKLOADS, "workload")
    before = number_before(rung.number)
    for file in [load_of(rung.number)] if name == LOAD else names_of(name):
        recording = recording_of(file, gpu, folder)
        if recording is not None and {before or rung.number, rung.number} <= recording.rungs.keys():
            return RecordedComparison.of(recording, before, rung.number)
    return None


def recorded_traffic(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> TrafficComparison | None:
    """The recorded runs before and after a lesson under mixed traffic, or None where there are none."""
    burst = recorded_comparison(lesson, BURST, gpu, folder)
    load = recorded_comparison(lesson, LOAD, gpu, folder)
    if burst is None or load is None:
        return None
    return TrafficComparison(burst, load)


def recorded_ladder(
    workload: str, gpu: str | None = None, folder: Path = RESULTS, first: str | None = None
) -> RecordedLadder | None:
    """All rungs that were recorded together under an article's workload or the burst, or None where there are none.

    first: the rung that a recording of only a part of the ladder begins with (`rosecourse record --from`).
    """
    require_known(workload, [name for name in WORKLOADS if name != LOAD], "ladder of")
    recording = recording_of(name_from(workload, first), gpu, folder)
    return None if recording is None else RecordedLadder.of(recording)
