"""Recorded runs: `runs.csv`, with its provenance beside it.

data/results/<gpu>/ holds, in tidy form, what `tools/record/runs.py` has measured on a GPU:

* `runs.csv`: a row for each run, with the columns `KEYS` and a column for each figure, named as `figure_name` names it.
  All rungs of a workload ran in the same rounds, so that rows of one round make pairs. `twice` is 1 in the rows of a
  rung that was measured a second time in each round: the control.
* `gaps.csv`: milliseconds before each token of the first request, by workload and lesson; the median over the runs.
* `runs.json`: for each workload its conditions, the copy bandwidth, the commit, the command, the date, the versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ..errors import RosecourseError
from ..lessons import LESSONS
from ..lessons import lesson as lesson_of
from ..lessons.workloads import ARTICLES
from ..measure.compare import Comparison, Conditions, Figures, Ladder
from ..measure.metrics import UNITS
from ..measure.samples import OF_A_RUN, Samples, figure_name
from ..measure.stats import Ratio, ratio
from .results import RESULTS, require_known, results_file

BURST, LOAD = "D-burst", "D-load"  # mixed traffic, all at once and over time
WORKLOADS = (*ARTICLES, BURST, LOAD)
KEYS = ["workload", "lesson", "twice", "round"]
STATISTICS = {metric: ["p50"] if metric in OF_A_RUN else ["mean", "p50", "p95", "p99"] for metric in UNITS}
FIGURES = [(metric, statistic) for metric, statistics in STATISTICS.items() for statistic in statistics]
FLOOR = "share of the floor"  # of a run: the least time that its decode steps could take / the time that they took
COUNTS = ["prefill time", "decode steps", "preemptions"]  # seconds, and how many
COLUMNS = [*KEYS, *(figure_name(*one) for one in FIGURES), FLOOR, *COUNTS]
BROKEN = (OSError, ValueError, KeyError, TypeError)  # what a damaged file raises


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
class Recording:
    """All rungs that were measured under one workload, in one sitting on one card. rungs: by the number of the lesson.

    twice: the rungs that were measured a second time in each round. document: what `runs.json` says of the workload.
    """

    rungs: Mapping[str, RecordedSamples]
    twice: Mapping[str, RecordedSamples]
    document: dict[str, Any] = field(repr=False)

    @property
    def conditions(self) -> Conditions:
        """What was measured, and on what."""
        return Conditions(**self.document["conditions"])

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the commit, the date and the command."""
        one = self.document
        versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items() if version)
        return f"{one['device']}, {versions}, commit {one['commit'][:12]}, {one['date'][:10]}, `{one['command']}`"

    def control(self, number: str, figures: Figures, more_is_better: bool = False) -> Ratio | None:
        """What a figure of one engine is to itself: of the rung nearest on the ladder that was measured twice."""
        if not self.twice:
            return None
        numbers = [rung.number for rung in LESSONS]
        nearest = min(self.twice, key=lambda other: abs(numbers.index(other) - numbers.index(number)))
        once, again = figures(self.rungs[nearest]), figures(self.twice[nearest])
        return ratio(again, once) if more_is_better else ratio(once, again)


@dataclass(frozen=True)
class RecordedComparison(Comparison):
    """Two neighbouring rungs of a recording. numbers: of their lessons; only `after` for the first.

    The control of its ratios is that of the nearest rung that was measured twice.
    """

    recording: Recording = field(repr=False)
    numbers: Mapping[str, str]

    def ratio_of(self, figures: Figures, more_is_better: bool = False) -> Ratio:
        """As for any comparison, with the recording's control."""
        found = super().ratio_of(figures, more_is_better)
        number = self.numbers.get("before", self.numbers["after"])
        return replace(found, control=self.recording.control(number, figures, more_is_better))

    @property
    def document(self) -> dict[str, Any]:
        """What `runs.json` says of the workload."""
        return self.recording.document

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the commit, the date and the command."""
        return self.recording.provenance

    def share_of_floor(self, side: Literal["before", "after"]) -> float:
        """The least time that the decode steps could take / the time that they took; NaN before the first lesson."""
        number = self.numbers.get(side)
        return float("nan") if number is None else self.recording.rungs[number].share_of_floor

    def table(self) -> pd.DataFrame:
        """The rows of any comparison, and the shares of the floor."""
        table = super().table()
        table.loc[f"{FLOOR} (%)", ["before", "after"]] = [100 * self.share_of_floor(s) for s in ("before", "after")]
        return table.fillna({"times better": ""})


@dataclass(frozen=True)
class RecordedLadder(Ladder):
    """All rungs of a recording. Its rungs are named by the numbers of their lessons."""

    recording: Recording = field(repr=False)

    @property
    def document(self) -> dict[str, Any]:
        """What `runs.json` says of the workload."""
        return self.recording.document

    @property
    def provenance(self) -> str:
        """One line: the device, the versions, the commit, the date and the command."""
        return self.recording.provenance

    @property
    def shares_of_floor(self) -> list[float]:
        """Of each rung: the least time that its decode steps could take / the time that they took."""
        return [rung.share_of_floor for rung in self.recording.rungs.values()]

    @property
    def memory_limit(self) -> float:
        """Tokens/s of a run that does nothing but read, in each decode step, the weights and the cache once."""
        rung = list(self.recording.rungs.values())[-1]
        return float((rung.rows["decode throughput"] / rung.rows[FLOOR]).median())

    @property
    def gains(self) -> list[Ratio]:
        """How many times the throughput of the rung before, for each rung but the first, with the control."""
        names = [rung.name for rung in self.rungs[:-1]]
        control = [self.recording.control(name, lambda side: side.seconds) for name in names]
        return [replace(gain, control=same) for gain, same in zip(super().gains, control, strict=True)]


def recording_of(workload: str, gpu: str | None = None, folder: Path = RESULTS) -> Recording | None:
    """The recording of a workload, or None where there is none; gpu and folder are those of `results_file`.

    Raises `RosecourseError` for files that are damaged.
    """
    path = results_file("runs.csv", gpu, folder)
    if path is None:
        return None
    try:
        tables = _tables(path, path.stat().st_mtime_ns)
        return _recording(tables, workload) if workload in tables.about else None
    except BROKEN as error:
        why = " ".join(str(error).split())
        raise RosecourseError(f"{path} or what is beside it cannot be used ({why}): restore it from git") from error


class Tables(NamedTuple):
    """The files of one GPU. about: `runs.json`."""

    runs: pd.DataFrame
    gaps: pd.DataFrame
    about: dict[str, dict[str, Any]]


@lru_cache(maxsize=4)
def _tables(path: Path, changed: int) -> Tables:
    """The files of one GPU. changed: when, so that a file that was written again is read again."""
    runs, gaps = (pd.read_csv(path.with_name(name), dtype={"lesson": str}) for name in ("runs.csv", "gaps.csv"))
    if missing := [column for column in COLUMNS if column not in runs]:
        raise ValueError(f"it has no column {missing[0]!r}")
    return Tables(runs, gaps, json.loads(path.with_name("runs.json").read_text(encoding="utf-8")))


def _recording(tables: Tables, workload: str) -> Recording:
    runs = tables.runs[tables.runs.workload == workload]
    gaps = tables.gaps[tables.gaps.workload == workload].groupby("lesson")["milliseconds"]
    along = {str(number): one.to_numpy() for number, one in gaps}
    rungs: list[dict[str, RecordedSamples]] = [{}, {}]
    for (number, twice), rows in runs.groupby(["lesson", "twice"]):
        one = RecordedSamples(str(number), [], rows=rows.sort_values("round"), gaps_ms=along[str(number)])
        rungs[twice][str(number)] = one
    if {len(one) for each in rungs for one in each.values()} != {tables.about[workload]["conditions"]["rounds"]}:
        raise ValueError(f"workload {workload} has not the same rounds of every rung")
    return Recording(rungs[0], rungs[1], tables.about[workload])


def recorded_comparison(
    lesson: str, workload: str | None = None, gpu: str | None = None, folder: Path = RESULTS
) -> RecordedComparison | None:
    """The recorded runs before and after a lesson, or None where they are not recorded.

    workload: one of `WORKLOADS`; None is the lesson's own. gpu and folder: as for `results_file`. Raises `LessonError`
    for a lesson that is not on the ladder, `ConfigError` for an unknown workload, and `RosecourseError` for files that
    are damaged.
    """
    rung = lesson_of(lesson)
    name = rung.workload.name if workload is None else workload
    require_known(name, WORKLOADS, "workload")
    recording = recording_of(name, gpu, folder)
    numbers = [one.number for one in LESSONS]
    place = numbers.index(rung.number)
    pair = numbers[max(0, place - 1) : place + 1]
    if recording is None or not recording.rungs.keys() >= set(pair):
        return None
    *earlier, after = (
        replace(recording.rungs[number], name=side) for number, side in zip(pair, SIDES[-len(pair) :], strict=True)
    )
    before = earlier[0] if earlier else Samples("before", [])
    named = dict(zip(SIDES[-len(pair) :], pair, strict=True))
    return RecordedComparison(before, after, recording.conditions, recording, named)


SIDES = ("before", "after")


def recorded_ladder(workload: str, gpu: str | None = None, folder: Path = RESULTS) -> RecordedLadder | None:
    """All rungs that were recorded under a workload, or None where it is not recorded; errors as above."""
    require_known(workload, WORKLOADS, "workload")
    recording = recording_of(workload, gpu, folder)
    if recording is None:
        return None
    titles = [lesson_of(number).title for number in recording.rungs]
    return RecordedLadder(list(recording.rungs.values()), titles, recording.conditions, recording)
