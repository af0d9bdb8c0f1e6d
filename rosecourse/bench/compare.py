"""Comparing two ways to do the same work: interleaved runs in one process, and a ratio with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm


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
    before: Callable[[], float], after: Callable[[], float], pairs: int, progress: bool = False
) -> tuple[list[float], list[float]]:
    """Run both `pairs` times in the order A B B A A B ..., so that a drift of the machine meets both alike.

    Each callable does the work once and returns its seconds (or another sample). The first pair warms up and does
    not count.
    """
    samples: tuple[list[float], list[float]] = ([], [])
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
