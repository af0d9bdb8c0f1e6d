"""Medians, ratios and their intervals, from interleaved runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from .progress import progress

Sample = TypeVar("Sample")

NO_DIFFERENCE = "no difference measurable here"
ROUNDING = 1e-9  # a ratio that is no further from 1 differs from it by the rounding of its computation alone

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

    control: the same ratio of `before` to itself, measured twice in the same rounds. What the machine does to two runs
    of one engine shows there, so a difference is told only outside of it. None: the interval stands alone.
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

    def verdict_over(self, pairs: int, above: str = "faster", below: str = "slower") -> str:
        """What may be said of it after so many pairs: `above` or `below` 1.0, no difference, or nothing."""
        if pairs < FEWEST_PAIRS:
            return f"too few pairs to tell, take {FEWEST_PAIRS} or more"
        return {"faster": above, "slower": below}.get(self.verdict, self.verdict)


def by_chance(ratios: Sequence[Ratio]) -> str:
    """A sentence that puts verdicts into perspective where both sides do the same: how many there are, and why."""
    missed = sum(better.verdict != NO_DIFFERENCE for better in ratios)
    return (
        f"{missed} of these {len(ratios)} intervals miss{'es' * (missed == 1)} 1. Where both sides do the same, one "
        "interval of 95 % in 20 misses 1 by chance, with so few runs a few more, and many more where another program "
        "runs beside some of the runs."
    )


def _limit(value: float, digits: int) -> str:
    texts = (f"{value:.{n}f}" for n in range(digits, 16))
    told = next((text for text in texts if float(text) != 1), "")
    return f"{value:.{digits}f}" if abs(value - 1) <= ROUNDING else told


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


def interleave(
    before: Callable[[], Sample], after: Callable[[], Sample], pairs: int
) -> tuple[list[Sample], list[Sample]]:
    """`interleave_all` of two: in the order A B B A A B ..., the first pair not counted."""
    first, second = interleave_all((before, after), pairs)
    return first, second


def median_interval(samples: Sequence[float] | np.ndarray, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The median, and the interval in which it lies in 95 % of resamplings (Efron's percentile bootstrap).

    All three are NaN where there are no samples.
    """
    if len(samples) == 0:
        return Interval(math.nan, math.nan, math.nan)
    values = np.asarray(samples)
    chosen = np.random.default_rng(seed).integers(0, len(values), size=(resamples, len(values)))
    low, high = np.percentile(np.median(values[chosen], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


Middle = Callable[..., Any]  # of numpy, such as `np.median`


def ratio(
    before: Sequence[float], after: Sequence[float], resamples: int = 10_000, middle: Middle = np.median
) -> Ratio:
    """The ratio of the medians, before / after, and the interval in which it lies in 95 % of resamplings.

    Pairs are resampled whole (Efron's percentile bootstrap), so that what a round of the machine does to both stays
    together. NaN where there are no samples. middle: what stands in the median's place.
    """
    if len(before) == 0:
        return Ratio(math.nan, math.nan, math.nan)
    pairs = np.asarray([before, after], dtype=float)
    chosen = np.random.default_rng(0).integers(0, pairs.shape[1], size=(resamples, pairs.shape[1]))
    one, other = middle(pairs[:, chosen], axis=2)
    low, high = np.percentile(one / other, [2.5, 97.5])
    return Ratio(float(middle(pairs[0]) / middle(pairs[1])), float(low), float(high))
