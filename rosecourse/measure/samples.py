"""The counted runs of one engine, and the figures that they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from .metrics import PERCENTILES, Limits, last_step, per_request
from .stats import Interval, median_interval
from .workload import Run

# The metrics of `UNITS` that a run has one sample of; of the others each request has its own.
OF_A_RUN: dict[str, Callable[[Run], float]] = {
    "decode time": attrgetter("stats.decode_seconds"),
    "last step": lambda run: last_step(run.times[0]),
    "total time": attrgetter("total_seconds"),
    "decode throughput": attrgetter("decode_throughput"),
    "total throughput": attrgetter("total_throughput"),
}


def figure_name(metric: str, statistic: str) -> str:
    """How tables and sentences call a run's figure: without a statistic where a run has one sample only."""
    return metric if metric in OF_A_RUN else f"{metric} {statistic}"


@dataclass(frozen=True)
class Samples:
    """The counted runs of one engine. name: such as `before`, or the number of a lesson."""

    name: str
    runs: list[Run] = field(repr=False)

    @property
    def each_run(self) -> list[Samples]:
        """Each run by itself."""
        return [Samples(self.name, [run]) for run in self.runs]

    def values(self, metric: str) -> list[float]:
        """Every sample of a metric of `UNITS`, in its unit: one a run for times and throughputs, else pooled."""
        if metric in OF_A_RUN:
            return [OF_A_RUN[metric](run) for run in self.runs]
        samples = per_request(run.times for run in self.runs)[metric.lower().replace(" ", "_")]
        return [1e3 * seconds for seconds in samples]

    def figure(self, metric: str, statistic: str) -> float:
        """A metric of `UNITS`, in its unit, over all samples; NaN without runs. statistic: p50, p95, p99 or mean."""
        values = self.values(metric)
        if not values:
            return float("nan")
        return float(np.mean(values) if statistic == "mean" else np.percentile(values, PERCENTILES[statistic]))

    @property
    def seconds(self) -> list[float]:
        """The total time of each run."""
        return self.values("total time")

    @property
    def throughputs(self) -> list[float]:
        """Completion tokens a second of each run."""
        return self.values("total throughput")

    @property
    def throughput(self) -> Interval:
        """The median over the runs, tokens/s, with its interval."""
        return median_interval(self.throughputs)

    def typical(self, metric: str, statistic: str) -> float:
        """The median over the runs of each run's own `figure`; NaN without runs. Ratios are of these."""
        return self.interval(metric, statistic).value

    def interval(self, metric: str, statistic: str) -> Interval:
        """The same with its interval."""
        return median_interval([one.figure(metric, statistic) for one in self.each_run])

    def shares_good(self, limits: Limits) -> list[float]:
        """The share of requests that kept to the limits, of each run."""
        return [float(np.mean([limits.met_by(times) for times in run.times])) for run in self.runs]

    @property
    def itl_ms(self) -> np.ndarray:
        """Every inter-token latency of every request of every run, float64, milliseconds."""
        return np.asarray(self.values("ITL"), dtype=float)

    @property
    def itl_tail(self) -> float:
        """p99 / p50 of the inter-token latencies: 1.0 is a stream without a stall."""
        return self.typical("ITL", "p99") / self.typical("ITL", "p50")

    @property
    def typical_itl_ms(self) -> np.ndarray:
        """The gaps of a run, shortest first, each the median over the runs: their percentiles are `typical`."""
        return np.median([np.sort(one.itl_ms) for one in self.each_run], axis=0)

    @property
    def itl_along_steps_ms(self) -> np.ndarray:
        """Milliseconds before each token of the first request but its first: at each, the median over the runs.

        The median removes noise and keeps what belongs to a position, such as a new block. Empty without runs.
        """
        gaps = [np.diff(run.times[0].tokens) for run in self.runs]
        return 1e3 * np.median(gaps, axis=0) if gaps else np.empty(0)
