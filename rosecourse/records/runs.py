"""Recorded runs: how data/results/<gpu>/<lesson>.json is written and read, and the figures that it gives.

A recorded file is one JSON object (`archive`), and `SCHEMA` names its keys. `before` and `after` are lists of runs, in
pairs, in the order of measuring; `before` is empty for the first lesson, which changes nothing. `copy_bytes_per_second`
is the copy bandwidth that was measured beside them, and a run's `decode_bytes` is what its decode steps must at least
read: the floor.

All sessions of a step get their tokens at one moment, so a run stores each moment once. In whole microseconds from the
start of the run: `moments_us` is the first moment and then the gaps from each to the next; `submitted_us` and
`admitted_us` have one number a request. `tokens` has a list for each request, [first, count, first, count, ...]: its
tokens came at `count` consecutive moments from moment number `first` on, and so on. Nothing is lost but what is below a
microsecond: every metric of `measure.metrics` can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import numpy as np
import pandas as pd

from ..lessons import lesson as lesson_of
from ..measure.floor import share_of_floor
from ..measure.metrics import per_request, throughput
from ..measure.stats import Ratio, ratio
from ..measure.workload import Run
from ..request.session import SessionTimes
from .archive import RESULTS, check, find, gpus_with, read

Side = Literal["before", "after"]

FORMAT = 1

RUN = {
    "total_us": int,
    "prefill_us": int,
    "decode_us": int,
    "decode_steps": int,
    "decode_bytes": int,
    "preemptions": int,
    "submitted_us": [int],
    "admitted_us": [int],
    "moments_us": [int],
    "tokens": [[int]],
}
SCHEMA = {  # see `archive.check`
    "format": int,
    "lesson": str,
    "title": str,
    "command": str,
    "date": str,
    "commit": (str, NoneType),
    "dirty": (bool, NoneType),
    "host": {"cpu": str, "gpu": (str, NoneType), "driver": (str, NoneType)},
    "versions": dict,
    "settings": {"benchmark": str, "num_requests": int, "max_new_tokens": int, "max_batch_size": int},
    "units": str,
    "definitions": dict,
    "same_tokens": bool,
    "copy_bytes_per_second": float,
    "before": [RUN],
    "after": [RUN],
    "sha256": str,
}

UNITS = {
    "decode time": "s",
    "total time": "s",
    "decode throughput": "tokens/s",
    "total throughput": "tokens/s",
    "TTFT": "ms",
    "TPOT": "ms/token",
    "ITL": "ms",
    "latency": "ms",
}
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}
HEADLINES = [
    ("total throughput", "p50"),
    ("decode throughput", "p50"),
    ("TPOT", "p50"),
    ("ITL", "p50"),
    ("ITL", "p95"),
    ("ITL", "p99"),
    ("TTFT", "p50"),
]


# -- one run, as it is written and read -----------------------------------------------------------------------------


def packed(run: Run, decode_bytes: int) -> dict[str, Any]:
    """A run as a recorded file has it: all times in whole microseconds from the start of the run.

    decode_bytes: what its decode steps must at least read, of `measure.floor.bytes_per_run`.
    """

    def us(moment: float) -> int:
        return round(1e6 * (moment - run.start))

    moments = sorted({us(moment) for times in run.times for moment in times.tokens})
    number = {moment: n for n, moment in enumerate(moments)}
    return {
        "total_us": round(1e6 * run.total_seconds),
        "prefill_us": round(1e6 * run.stats.prefill_seconds),
        "decode_us": round(1e6 * run.stats.decode_seconds),
        "decode_steps": run.stats.decode_steps,
        "decode_bytes": decode_bytes,
        "preemptions": run.stats.preemptions,
        "submitted_us": [us(times.submitted) for times in run.times],
        "admitted_us": [us(times.admitted) for times in run.times],
        "moments_us": np.diff(moments, prepend=0).tolist(),
        "tokens": [_ranges([number[us(moment)] for moment in times.tokens]) for times in run.times],
    }


def _ranges(numbers: Sequence[int]) -> list[int]:
    """[4, 5, 6, 9] as first, count, first, count: [4, 3, 9, 1]."""
    found: list[int] = []
    for number in numbers:
        if found and number == found[-2] + found[-1]:
            found[-1] += 1
        else:
            found += [number, 1]
    return found


@dataclass(frozen=True)
class RecordedRun:
    """One run as it was recorded, in seconds from its start; `times` are the raw samples of each request."""

    total_seconds: float
    prefill_seconds: float
    decode_seconds: float
    decode_steps: int
    decode_bytes: int  # that they must at least read
    preemptions: int
    times: list[SessionTimes] = field(repr=False)

    @property
    def num_tokens(self) -> int:
        return sum(len(times.tokens) for times in self.times)

    @property
    def total_throughput(self) -> float:
        """Completion tokens a second of the whole run."""
        return throughput(self.num_tokens, self.total_seconds)

    @property
    def decode_throughput(self) -> float:
        """Completion tokens a second of decode steps, the articles' Throughput(completion,decode)."""
        return throughput(self.num_tokens, self.decode_seconds)

    @classmethod
    def of(cls, run: dict[str, Any]) -> RecordedRun:
        """The run that `packed` packed. Raises `ValueError` for one that it cannot have packed."""
        moments = np.cumsum(run["moments_us"], dtype=np.int64)
        requests = zip(run["submitted_us"], run["admitted_us"], run["tokens"], strict=True)
        times = [
            SessionTimes(submitted / 1e6, admitted / 1e6, _moments(moments, tokens))
            for submitted, admitted, tokens in requests
        ]
        if not times or min(run["total_us"], run["decode_us"]) <= 0 or min(run["moments_us"]) < 0:
            raise ValueError("a run without requests, or without time")
        seconds = [run[name] / 1e6 for name in ("total_us", "prefill_us", "decode_us")]
        return cls(*seconds, run["decode_steps"], run["decode_bytes"], run["preemptions"], times)


def _moments(moments: np.ndarray, ranges: Sequence[int]) -> list[float]:
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    if not pairs or any(first < 0 or count < 1 or first + count > len(moments) for first, count in pairs):
        raise ValueError("a request's tokens came at moments that are not there")
    return (np.concatenate([moments[first : first + count] for first, count in pairs]) / 1e6).tolist()


def samples(runs: Sequence[RecordedRun], metric: str) -> list[float]:
    """Samples of a metric of `UNITS`, in its unit: one a run for times and throughputs, else pooled over requests."""
    if metric in ("decode time", "total time", "decode throughput", "total throughput"):
        attribute = metric.replace(" time", "_seconds").replace(" ", "_")
        return [getattr(run, attribute) for run in runs]
    return [1e3 * seconds for seconds in per_request(run.times for run in runs)[metric.lower()]]


def figure(runs: Sequence[RecordedRun], metric: str, statistic: str) -> float:
    """A figure of some runs, in the unit of `UNITS`. statistic: p50, p95, p99 or mean; NaN where there are no runs."""
    values = samples(runs, metric)
    if not values:
        return float("nan")
    return float(np.mean(values) if statistic == "mean" else np.percentile(values, PERCENTILES[statistic]))


# -- all of a lesson ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded:
    """A lesson's recorded runs: those of the engine before it and after it, in pairs, and where they come from."""

    lesson: str
    title: str
    before: list[RecordedRun] = field(repr=False)  # none for the first lesson
    after: list[RecordedRun] = field(repr=False)
    document: dict[str, Any] = field(repr=False)  # all that the file says

    @classmethod
    def of(cls, document: dict[str, Any]) -> Recorded:
        """Raises `ValueError` where the runs do not fit together."""
        sides = [[RecordedRun.of(run) for run in document[side]] for side in ("before", "after")]
        changes = lesson_of(document["lesson"]).changes
        if not sides[1] or len(sides[0]) != (len(sides[1]) if changes else 0):
            raise ValueError("the runs are not in pairs")
        if document["copy_bytes_per_second"] <= 0:
            raise ValueError("the copy bandwidth is not positive")
        return cls(document["lesson"], document["title"], *sides, document)

    @property
    def gpu(self) -> str:
        """The GPU's name; the CPU's where the runs were on the CPU."""
        return self.document["host"]["gpu"] or self.document["host"]["cpu"]

    @property
    def same_tokens(self) -> bool:
        """Whether all runs, before and after, made the same tokens; in float16 rounding may differ."""
        return self.document["same_tokens"]

    @property
    def provenance(self) -> str:
        """One line: on what, with what, from which source, when, and the command."""
        known = self.document
        versions = [f"{name} {found}" for name, found in known["versions"].items() if found]
        driver = [f"driver {known['host']['driver']}"] if known["host"]["driver"] else []
        return ", ".join([self.gpu, *driver, *versions, self.source, known["date"], f"`{known['command']}`"])

    @property
    def source(self) -> str:
        """The commit, and whether what is measured had been changed since."""
        commit, dirty = self.document["commit"], self.document["dirty"]
        changes = {True: " with changes", False: "", None: " (changes unknown)"}[dirty]
        return f"commit {commit[:12]}{changes}" if commit else "commit unknown"

    def runs(self, side: Side) -> list[RecordedRun]:
        return self.before if side == "before" else self.after

    def figure(self, side: Side, metric: str, statistic: str) -> float:
        """A figure in the unit of `UNITS`, over the samples of all runs; NaN before the first lesson."""
        return figure(self.runs(side), metric, statistic)

    def ratio(self, metric: str = "total time", statistic: str = "p50") -> Ratio | None:
        """How many times better `after` is in a metric, from the pairs of runs; None for the first lesson.

        More throughput is better, and less of any time. Each run gives one figure: percentiles are over its requests.
        """
        if not self.before:
            return None
        before, after = ([figure([run], metric, statistic) for run in runs] for runs in (self.before, self.after))
        return ratio(after, before) if UNITS[metric] == "tokens/s" else ratio(before, after)

    def share_of_floor(self, side: Side) -> float:
        """The least time that the decode steps could take / the time that they took: the runs' median, NaN without."""
        bandwidth = self.document["copy_bytes_per_second"]
        shares = [share_of_floor(run.decode_bytes, run.decode_seconds, bandwidth) for run in self.runs(side)]
        return float(np.median(shares)) if shares else float("nan")

    def itl(self, side: Side) -> np.ndarray:
        """Inter-token latencies in seconds, pooled over all requests of all runs."""
        return np.asarray(samples(self.runs(side), "ITL")) / 1e3

    def itl_along_steps(self, side: Side, request: int = 0) -> np.ndarray:
        """The gap before each token of one request, in seconds: its median over the runs."""
        gaps = [np.diff(run.times[request].tokens) for run in self.runs(side)]
        return np.median(gaps, axis=0) if gaps else np.empty(0)

    def table(self) -> pd.DataFrame:
        """Figures over all runs, before and after; `times better` with its 95 % interval comes from pairs of runs."""
        rows = {
            f"{metric} {statistic} ({UNITS[metric]})": self._row(metric, statistic) for metric, statistic in HEADLINES
        }
        shares = [100 * self.share_of_floor(side) for side in ("before", "after")]
        rows["share of the floor (%)"] = (*shares, "")
        return pd.DataFrame.from_dict(rows, orient="index", columns=["before", "after", "times better"])

    def _row(self, metric: str, statistic: str) -> tuple[float, float, str]:
        better = self.ratio(metric, statistic)
        before, after = (self.figure(side, metric, statistic) for side in ("before", "after"))
        return before, after, "" if better is None else str(better)


def load(path: Path, lesson: str) -> Recorded:
    """A recorded file, checked. Raises `RosecourseError` for one that is damaged, of another lesson or format."""

    def parse(document: dict[str, Any]) -> Recorded:
        check(document, SCHEMA, "the document")
        return Recorded.of(document)

    return read(path, "recorded", lesson, FORMAT, parse)


def recorded(lesson: str, gpu: str | None = None, folder: Path = RESULTS) -> Recorded | None:
    """The recorded runs of a lesson, or None where there are none.

    gpu: a name such as `NVIDIA H200`, or the folder's, `nvidia-h200`; None is the course's own, else the first found.
    Raises `LessonError` for a lesson that is not on the ladder, `RosecourseError` for a file that is damaged.
    """
    number = lesson_of(lesson).number
    path = find(f"{number}.json", gpu, folder)
    return None if path is None else load(path, number)


def recorded_gpus(lesson: str, folder: Path = RESULTS) -> list[str]:
    """The folders that have a recording of a lesson, the course's own first."""
    return gpus_with(f"{lesson_of(lesson).number}.json", folder)
