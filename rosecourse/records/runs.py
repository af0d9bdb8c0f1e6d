"""Recorded runs: `runs.csv`, with its provenance beside it.

data/results/<gpu>/ holds, in tidy form, what `tools/record/runs.py` has measured on a GPU:

* `runs.csv`: a row for each run, with the columns `KEYS` and a column for each figure, named as `figure_name` names it.
  All rungs of a workload ran in the same rounds, so that rows of one round make pairs. `twice` is 1 in the rows of a
  rung that was measured a second time in each round: the control.
* `gaps.csv`: milliseconds before each token of the first request, by workload and lesson; the median over the runs.
* `runs.json`: for each workload its conditions, the copy bandwidth, the commit, the command, the date, the versions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..errors import RosecourseError
from ..lessons import lesson as lesson_of
from ..lessons.workloads import ARTICLES
from ..measure.compare import Comparison, Conditions, Figures, Ladder
from ..measure.metrics import UNITS
from ..measure.samples import OF_A_RUN, Samples, figure_name
from ..measure.stats import Ratio, ratio
from .results import RESULTS, read_results, require_known, sides_of

BURST, LOAD = "D-burst", "D-load"  # mixed traffic, all at once and over time
WORKLOADS = (*ARTICLES, BURST, LOAD)
KEYS = ["workload", "lesson", "twice", "round"]
STATISTICS = {metric: ["p50"] if metric in OF_A_RUN else ["mean", "p50", "p95", "p99"] for metric in UNITS}
FIGURES = [(metric, statistic) for metric, statistics in STATISTICS.items() for statistic in statistics]
FLOOR = "share of the floor"  # of a run: the least time that its decode steps could take / the time that they took
COUNTS = ["prefill time", "decode steps", "preemptions"]  # seconds, and how many
COLUMNS = [*KEYS, *(figure_name(*one) for one in FIGURES), FLOOR, *COUNTS]


@dataclass(frozen=True)
class RecordedSamples(Samples):
    """The recorded runs of one rung under one workload. rows: of `runs.csv`; gaps_ms: of `gaps.csv`."""

    rows: pd.DataFrame = field(repr=False, kw_only=True)
    gaps_ms: np.ndarray = field(repr=False, kw_only=True)

    def __len__(self) -> int:
        return len(self.rows)

    def each(self, metric: str, statistic: str = "p50") -> list[float]:
        """A metric of `UNITS`, in its unit, of each run."""
        return self.rows[figure_name(metric, statistic)].tolist()

    @property
    def share_of_floor(self) -> float:
        """The least time that the decode steps could take / the time that they took: the median over the runs."""
        return float(self.rows[FLOOR].median())

    @property
    def itl_along_steps_ms(self) -> np.ndarray:
        """Milliseconds before each token of the first request but its first: at each, the median over the runs."""
        return self.gaps_ms


@dataclass(frozen=True)
class RecordedLadder(Ladder):
    """All rungs that were measured under one workload, in one sitting on one card, named by the numbers of lessons.

    by_number: the rungs once more. twice: those that were measured a second time in each round. document: what
    `runs.json` says of the workload.
    """

    by_number: Mapping[str, RecordedSamples] = field(repr=False, kw_only=True)
    twice: Mapping[str, RecordedSamples] = field(repr=False, kw_only=True)
    document: dict[str, Any] = field(repr=False, kw_only=True)

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the commit, the date and the command."""
        one = self.document
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items() if version)
        return f"{one['device']}, {versions}, commit {one['commit'][:12]}, {one['date'][:10]}, `{one['command']}`"

    @property
    def shares_of_floor(self) -> list[float]:
        """Of each rung: the least time that its decode steps could take / the time that they took."""
        return [rung.share_of_floor for rung in self.by_number.values()]

    def same_twice(self, number: str, figures: Figures, more_is_better: bool = False) -> Ratio | None:
        """What a figure of one engine is to itself: of the rung, among those measured twice, most nearly as fast."""
        if not self.twice:
            return None
        speed = {name: math.log(rung.throughput.value) for name, rung in self.by_number.items()}
        nearest = min(self.twice, key=lambda other: abs(speed[other] - speed[number]))
        once, again = figures(self.by_number[nearest]), figures(self.twice[nearest])
        return ratio(again, once) if more_is_better else ratio(once, again)


@dataclass(frozen=True)
class RecordedComparison(Comparison):
    """Two neighbouring rungs of a recording. numbers: of their lessons; only `after` for the first.

    The control of its ratios is that of the rung, among those measured twice, that is most nearly as fast.
    """

    recording: RecordedLadder = field(repr=False, kw_only=True)
    numbers: Mapping[str, str] = field(kw_only=True)

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the commit, the date and the command."""
        return self.recording.provenance

    def ratio_of(self, figures: Figures, more_is_better: bool = False) -> Ratio:
        """As for any comparison, with the recording's control."""
        found = super().ratio_of(figures, more_is_better)
        number = self.numbers.get("before", self.numbers["after"])
        return replace(found, control=self.recording.same_twice(number, figures, more_is_better))

    def share_of_floor(self, side: Literal["before", "after"]) -> float:
        """The least time that the decode steps could take / the time that they took; NaN before the first lesson."""
        return self.recording.by_number[self.numbers[side]].share_of_floor if side in self.numbers else float("nan")

    def table(self) -> pd.DataFrame:
        """The rows of any comparison, and the shares of the floor."""
        table = super().table()
        table.loc[f"{FLOOR} (%)", ["before", "after"]] = [100 * self.share_of_floor(s) for s in ("before", "after")]
        return table.fillna({"times better": ""})


def recorded_ladder(workload: str, folder: Path = RESULTS) -> RecordedLadder | None:
    """All rungs that were recorded under a workload, or None where it is not recorded. folder: of all GPUs' folders.

    Raises `ConfigError` for an unknown workload, and `RosecourseError` for files that are damaged.
    """
    require_known(workload, WORKLOADS, "workload")
    found = read_results("runs.json", ("runs.csv", "gaps.csv"), folder)
    if found is None or workload not in found[0]:
        return None
    document, tables = found
    return _ladder(document[workload], *(table[table.workload == workload] for table in tables))


def _ladder(document: dict[str, Any], runs: pd.DataFrame, gaps: pd.DataFrame) -> RecordedLadder:
    """Of one workload, from its part of each file."""
    along = {number: rows.to_numpy() for number, rows in gaps.groupby("lesson")["milliseconds"]}
    rungs: list[dict[str, RecordedSamples]] = [{}, {}]
    for (number, twice), rows in runs[COLUMNS].groupby(["lesson", "twice"]):
        rungs[twice][number] = RecordedSamples(number, [], rows=rows.sort_values("round"), gaps_ms=along[number])
    conditions, (once, again) = Conditions(**document["conditions"]), rungs
    if {len(one) for one in (*once.values(), *again.values())} != {conditions.rounds}:
        raise RosecourseError("the recording has not the same rounds of every rung: restore it from git")
    titles = [lesson_of(number).title for number in once]
    return RecordedLadder(list(once.values()), titles, conditions, by_number=once, twice=again, document=document)


def recorded_comparison(lesson: str, workload: str | None = None, folder: Path = RESULTS) -> RecordedComparison | None:
    """The recorded runs before and after a lesson, or None where they are not recorded.

    workload: one of `WORKLOADS`; None is the lesson's own. folder and errors: as for `recorded_ladder`. Raises
    `LessonError` for a lesson that is not on the ladder.
    """
    rung = lesson_of(lesson)
    recording = recorded_ladder(rung.workload.name if workload is None else workload, folder)
    numbers = sides_of(rung.number)
    if recording is None or not recording.by_number.keys() >= set(numbers.values()):
        return None
    sides = {side: replace(recording.by_number[number], name=side) for side, number in numbers.items()}
    before = sides.get("before", Samples("before", []))
    return RecordedComparison(before, sides["after"], recording.conditions, recording=recording, numbers=numbers)
