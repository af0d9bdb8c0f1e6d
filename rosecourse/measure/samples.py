"""The counted runs of one engine, and the figures that they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .metrics import per_request, percentiles, throughput
from .stats import Interval, median_interval
from .workload import Run


@dataclass(frozen=True)
class Samples:
    """The counted runs of one engine. name: such as `before`, or the number of a lesson."""

    name: str
    runs: list[Run]

    @property
    def seconds(self) -> list[float]:
        """What each run took, in all."""
        return [run.total_seconds for run in self.runs]

    @property
    def throughputs(self) -> list[float]:
        """Completion tokens a second of each run."""
        return [throughput(run.num_tokens, run.total_seconds) for run in self.runs]

    @property
    def throughput(self) -> Interval:
        """The median over the runs, tokens/s, with its interval."""
        return median_interval(self.throughputs)

    @property
    def itl_ms(self) -> np.ndarray:
        """Every inter-token latency of every request of every run, float64, milliseconds."""
        return 1e3 * np.asarray(per_request(run.times for run in self.runs)["itl"], dtype=float)

    @property
    def itl_percentiles_ms(self) -> tuple[float, float, float]:
        """p50, p95 and p99 of the pooled inter-token latencies, in milliseconds."""
        p50, p95, p99 = percentiles(self.itl_ms)
        return p50, p95, p99

    @property
    def itl_tail(self) -> float:
        """p99 / p50 of the pooled inter-token latencies: 1.0 is a stream without a stall."""
        p50, _, p99 = self.itl_percentiles_ms
        return p99 / p50

    @property
    def itl_along_steps_ms(self) -> np.ndarray:
        """Milliseconds before each token of the first request but its first; the median over the runs at each.

        What is noise goes with the median, what belongs to a position (a new block) stays.
        """
        return 1e3 * np.median([np.diff(run.times[0].tokens) for run in self.runs], axis=0)

    @property
    def steady_tail(self) -> float:
        """p99 / p50 of `itl_along_steps_ms`: the stalls that come at the same positions in every run."""
        p50, _, p99 = percentiles(self.itl_along_steps_ms)
        return p99 / p50

    def summary(self) -> dict[str, float]:
        """Medians over the runs and pooled percentiles: the rows of a table."""
        p50, p95, p99 = self.itl_percentiles_ms
        return {
            "throughput (tokens/s)": self.throughput.value,
            "TPOT p50 (ms)": 1e3 * percentiles(per_request(run.times for run in self.runs)["tpot"])[0],
            "ITL p50 (ms)": p50,
            "ITL p95 (ms)": p95,
            "ITL p99 (ms)": p99,
            "ITL p99/p50": self.itl_tail,
        }
