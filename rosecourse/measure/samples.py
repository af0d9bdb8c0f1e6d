"""The counted runs of one engine, and the figures that they give: one of each run, and the median over the runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from .metrics import PERCENTILES, per_request, throughput
from .stats import Interval, median_interval
from .workload import Run

# The metrics of `UNITS` that a run has one sample of; of the others each request has its own.
OF_A_RUN: dict[str, Callable[[Run], float]] = {
    "decode time": attrgetter("stats.decode_seconds"),
    "total time": attrgetter("total_seconds"),
    "decode throughput": lambda run: throughput(run.num_tokens, run.stats.decode_seconds),
    "total throughput": lambda run: throughput(run.num_tokens, run.total_seconds),
}


def figure_name(metric: str, statistic: str) -> str:
    """How tables, sentences and recordings call a figure: without a statistic where a run has one sample only."""
    return metric if metric in OF_A_RUN else f"{metric} {statistic}"


def figure_of(run: Run, metric: str, statistic: str) -> float:
    """A metric of `UNITS` of one run, in its unit; NaN where it has none. statistic: p50, p95, p99 or mean."""
    if metric in OF_A_RUN:
        return OF_A_RUN[metric](run)
    values = [1e3 * seconds for seconds in per_request([run.times])[metric.lower().replace(" ", "_")]]
    if not values:
        return float("nan")
    return float(np.mean(values) if statistic == "mean" else np.percentile(values, PERCENTILES[statistic]))


@dataclass(frozen=True)
class Samples:
    """The counted runs of one engine. name: such as `before`, or the number of a lesson."""

    name: str
    runs: list[Run] = field(repr=False)

    def __len__(self) -> int:
        return len(self.runs)

    def each(self, metric: str, statistic: str = "p50") -> list[float]:
        """A metric of `UNITS`, in its unit, of each run: percentiles are over the run's requests or gaps."""
        return [figure_of(run, metric, statistic) for run in self.runs]

    def interval(self, metric: str, statistic: str = "p50") -> Interval:
        """The median over the runs, with its 95 % interval; NaN without runs. Every page shows this figure."""
        return median_interval(self.each(metric, statistic))

    def typical(self, metric: str, statistic: str = "p50") -> float:
        """The median by itself. Ratios are of these."""
        return self.interval(metric, statistic).value

    @property
    def throughputs(self) -> list[float]:
        """Completion tokens a second of each run."""
        return self.each("total throughput")

    @property
    def throughput(self) -> Interval:
        """The median over the runs, tokens/s, with its interval."""
        return self.interval("total throughput")

    @property
    def itl_along_steps_ms(self) -> np.ndarray:
        """Milliseconds before each token of the first request but its first: at each, the median over the runs.

        The median removes noise and keeps what belongs to a position, such as a new block. Empty without runs.
        """
        gaps = [np.diff(run.times[0].tokens) for run in self.runs]
        return 1e3 * np.median(gaps, axis=0) if gaps else np.empty(0)
