"""Comparing two ways to do the same work: interleaved runs in one process, and a ratio with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from tqdm import tqdm

from ..engine import InferenceEngine
from ..errors import RosecourseError
from .metrics import per_request, percentiles, throughput
from .workload import Run, Workload, run_scheduler

Sample = TypeVar("Sample")


@dataclass(frozen=True)
class Ratio:
    """before / after of a time: how many times faster `after` is, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}x [{self.low:.3f}, {self.high:.3f}]"

    @property
    def verdict(self) -> str:
        """What may be said of it."""
        if self.low > 1.0:
            return "faster"
        return "slower" if self.high < 1.0 else "no difference measurable here"


def interleave(
    before: Callable[[], Sample], after: Callable[[], Sample], pairs: int, progress: bool = False
) -> tuple[list[Sample], list[Sample]]:
    """Run both `pairs` times in the order A B B A A B ..., so that a drift of the machine meets both alike.

    Each callable does the work once and returns its sample. The first pair warms up and does not count.
    """
    samples: tuple[list[Sample], list[Sample]] = ([], [])
    for number in tqdm(range(pairs + 1), desc="pairs", disable=not progress, leave=False):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            samples[which].append((before, after)[which]())
    return samples[0][1:], samples[1][1:]


def ratio(before: Sequence[float], after: Sequence[float], resamples: int = 10_000, seed: int = 0) -> Ratio:
    """The median of the pairs' ratios before / after, and the interval in which it lies in 95 % of resamplings."""
    pairs = np.asarray(before) / np.asarray(after)
    chosen = np.random.default_rng(seed).integers(0, len(pairs), size=(resamples, len(pairs)))
    low, high = np.percentile(np.median(pairs[chosen], axis=1), [2.5, 97.5])
    return Ratio(float(np.median(pairs)), float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """Two engines under one workload: the same tokens, and the runs of each, in pairs."""

    before: list[Run]
    after: list[Run]

    @property
    def speedup(self) -> Ratio:
        """How many times less time the whole workload takes."""
        return ratio(*([run.total_seconds for run in runs] for runs in (self.before, self.after)))

    def table(self) -> pd.DataFrame:
        """Medians over the runs, and pooled percentiles, before and after; N is the number of samples of a run."""
        columns = {name: _summary(runs) for name, runs in (("before", self.before), ("after", self.after))}
        return pd.DataFrame(columns)

    def verdict(self, name: str) -> str:
        """One sentence on what may be said of `name`."""
        pairs = f"{self.speedup} over {len(self.before)} interleaved pairs"
        return f"{name}: {self.speedup.verdict} ({pairs})"


def _summary(runs: list[Run]) -> dict[str, float]:
    samples = per_request(run.times for run in runs)
    p50, p95, p99 = (1e3 * value for value in percentiles(samples["itl"]))
    return {
        "throughput (tokens/s)": float(np.median([throughput(run.num_tokens, run.total_seconds) for run in runs])),
        "TPOT p50 (ms)": 1e3 * percentiles(samples["tpot"])[0],
        "ITL p50 (ms)": p50,
        "ITL p95 (ms)": p95,
        "ITL p99 (ms)": p99,
    }


def compare(
    before: InferenceEngine,
    after: InferenceEngine,
    workload: Workload,
    pairs: int = 5,
    run: Callable[[InferenceEngine, Workload], Run] = run_scheduler,
    progress: bool = False,
) -> Comparison:
    """Equal tokens first, then interleaved runs. Raises `RosecourseError` when the tokens differ.

    run: `run_scheduler`, `run_offline` or `run_streaming` of `bench.workload`.
    """
    found = Comparison(*interleave(lambda: run(before, workload), lambda: run(after, workload), pairs, progress))
    for one, other in zip(found.before, found.after, strict=True):
        if one.completions != other.completions:
            raise RosecourseError("the engines give different tokens: a comparison of times would mean nothing")
    return found
