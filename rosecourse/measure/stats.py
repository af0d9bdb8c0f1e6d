"""Medians, ratios and their intervals (Efron's percentile bootstrap), from interleaved runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .progress import progress

Sample = TypeVar("Sample")

NO_DIFFERENCE = "no difference measurable here"
ROUNDING = 1e-9  # a ratio that is no further from 1 differs from it by the rounding of its computation alone
RESAMPLES = 10_000

# The 95 % interval of a median needs six samples, and five are nearly enough. With fewer, the true median lies outside
# even their whole range in more than 12 % of cases, so that nothing is claimed.
FEWEST_PAIRS = 5


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % bootstrap interval, in the unit of its samples."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio(Interval):
    """before / after of a time: how many times faster `after` is, with a 95 % bootstrap interval.

    control: the same ratio of `before` to itself, measured twice in the same rounds: a difference is told only outside.
    """

    control: Interval | None = None

    def __str__(self) -> str:
        return self.shown(3)

    def shown(self, digits: int) -> str:
        """With so many digits behind the point; a limit that would be rounded to 1 has more, to show its side of it."""
        return f"{self.value:.{digits}f}x [{_limit(self.low, digits)}, {_limit(self.high, digits)}]"

    @property
    def verdict(self) -> str:
        """What may be said of it where pairs are not too few: see `verdict_over`."""
        if math.isnan(self.value):
            return "nothing to compare"
        same = self.control or Interval(1.0, 1.0, 1.0)
        if self.low > max(1.0, same.high) + ROUNDING:
            return "faster"
        return "slower" if self.high < min(1.0, same.low) - ROUNDING else NO_DIFFERENCE

    def verdict_over(self, pairs: int) -> str:
        """What may be said of it after so many pairs: of too few, nothing."""
        return self.verdict if pairs >= FEWEST_PAIRS else f"too few pairs to tell, take {FEWEST_PAIRS} or more"


def _limit(value: float, digits: int) -> str:
    beside_1 = abs(value - 1) > ROUNDING and float(f"{value:.{digits}f}") == 1
    return _limit(value, digits + 1) if beside_1 else f"{value:.{digits}f}"


def order_of_round(count: int, number: int) -> range:
    """In which order a round does `count` works: forwards in round 0, backwards in round 1, and so on."""
    return range(count)[:: 1 if number % 2 == 0 else -1]


def interleave_all(works: Sequence[Callable[[], Sample]], rounds: int) -> list[list[Sample]]:
    """Do each work `rounds` times, in the order 0 1 .. n n .. 1 0 0 1 .., so that a drift of the machine meets all.

    Each callable does its work once and returns one sample. The first round warms up and does not count. Returns the
    samples of each. Where somebody watches, a bar moves between the runs.
    """
    samples: list[list[Sample]] = [[] for _ in works]
    with progress("runs", (rounds + 1) * len(works)) as advance:
        for number in range(rounds + 1):
            for which in order_of_round(len(works), number):
                samples[which].append(works[which]())
                advance()
    return [of_one[1:] for of_one in samples]


def median_interval(samples: Sequence[float]) -> Interval:
    """The median, and the interval in which it lies in 95 % of resamplings; NaN without samples."""
    return Interval(*_bootstrap(lambda drawn: np.median(drawn[0], axis=-1), samples))


def ratio(before: Sequence[float], after: Sequence[float], mean: bool = False) -> Ratio:
    """The ratio of the medians or means, before / after, and the interval in which it lies in 95 % of resamplings.

    Pairs are resampled whole, so that what a round of the machine does to both stays together. NaN without samples.
    """
    middle = np.mean if mean else np.median
    return Ratio(*_bootstrap(lambda drawn: middle(drawn[0], axis=-1) / middle(drawn[1], axis=-1), before, after))


def _bootstrap(figure: Callable[[np.ndarray], np.ndarray], *series: Sequence[float]) -> tuple[float, float, float]:
    """A figure of series [S, N], and its 95 % limits over series [S, RESAMPLES, N] whose columns are drawn anew."""
    values = np.asarray(series, dtype=float)
    size = values.shape[1]
    if size == 0:
        return math.nan, math.nan, math.nan
    drawn = values[:, np.random.default_rng(0).integers(0, size, size=(RESAMPLES, size))]
    low, high = np.percentile(figure(drawn), [2.5, 97.5]).tolist()
    return float(figure(values)), low, high
