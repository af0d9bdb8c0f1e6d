"""The steps around a block boundary: what they take beside the others, and how much of the tail they make up."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..checks import require
from ..errors import ConfigError
from .compare import Comparison
from .samples import Samples

KINDS = ("a block begins", "the step after", "all others")
SLOWEST = 0.01  # the share of gaps that lie above p99
AROUND = 8  # gaps on either side that one is compared with


def boundary_steps(comparison: Comparison) -> pd.DataFrame:
    """How long the steps take in which a block begins, those that follow them, and all others.

    The gaps between the tokens of the first request tell, so it should have been alike for all requests, which then
    begin their blocks together. Columns: `steps`, how many there are in a run; for each side `before (ms)`, the median
    gap, and `slowest hundredth, before`, which share of the slowest hundredth of all runs' gaps is of this kind. Raises
    `ConfigError` where the length of the prompt is not known, or where a block holds fewer than three tokens.
    """
    prompt_tokens, block_size = comparison.conditions.prompt_tokens, comparison.conditions.block_size
    if prompt_tokens is None:
        raise ConfigError("the length of the prompt is not known: measure the comparison anew")
    require(block_size >= len(KINDS), f"a block of {block_size} tokens has no step inside: give it 3 or more")
    positions = np.arange(len(comparison.after.itl_along_steps_ms)) + prompt_tokens
    kinds = np.minimum(positions % block_size, len(KINDS) - 1)
    columns: dict[str, Sequence[float]] = {"steps": [int(np.sum(kinds == kind)) for kind in range(len(KINDS))]}
    columns |= {f"{side.name} (ms)": _medians(side, kinds) for side in comparison.sides}
    columns |= {f"slowest hundredth, {side.name}": _shares_of_the_slowest(side, kinds) for side in comparison.sides}
    return pd.DataFrame(columns, index=list(KINDS))


def _medians(side: Samples, kinds: np.ndarray) -> list[float]:
    """The median gap of each kind of step; NaN where there is none."""
    gaps = side.itl_along_steps_ms
    return [float(np.median(gaps[kinds == kind])) if kind in kinds else float("nan") for kind in range(len(KINDS))]


def _shares_of_the_slowest(side: Samples, kinds: np.ndarray) -> list[float]:
    """Of the slowest hundredth of the gaps of all runs, or at least one, the share of each kind of step."""
    gaps = np.concatenate([np.diff(run.times[0].tokens) for run in side.runs])
    slowest = np.argsort(gaps, kind="stable")[-max(1, round(SLOWEST * len(gaps))) :]
    return [float(np.mean(kinds[slowest % len(kinds)] == kind)) for kind in range(len(KINDS))]


def spikes(comparison: Comparison) -> pd.DataFrame:
    """How far gaps stand out from those around them, in ms, where the host launches a step and then reads the last one.

    What a launch takes longer shows in the gap before its own step's. Rows: gaps in which the host launches a step that
    begins a block, those at whose end its lists of tokens are full and have to grow, and gaps that are neither; what is
    both is left out. Columns: `gaps`, how many a run has; for each side the median. The gaps of the first request tell,
    as for `boundary_steps`.
    """
    prompt_tokens, block_size = comparison.conditions.prompt_tokens, comparison.conditions.block_size
    if prompt_tokens is None:
        raise ConfigError("the length of the prompt is not known: measure the comparison anew")
    tokens = np.arange(len(comparison.after.itl_along_steps_ms)) + prompt_tokens + 1  # of a request after the gap
    begins, full = tokens % block_size == 0, np.isin(tokens, _full_lists(int(tokens[-1])))
    kinds = {"a block begins": begins & ~full, "lists grow": full & ~begins, "all others": ~begins & ~full}
    columns: dict[str, Sequence[float]] = {"gaps": [int(kind.sum()) for kind in kinds.values()]}
    for side in comparison.sides:
        above = _above_those_around(side.itl_along_steps_ms)
        columns[f"{side.name} (ms)"] = [float(np.median(above[kind])) for kind in kinds.values()]
    return pd.DataFrame(columns, index=list(kinds))


def _full_lists(longest: int) -> list[int]:
    """The lengths at which a list that grows one by one has no room left, as this Python makes lists."""
    grown: list[int] = []
    lengths, size = [], sys.getsizeof(grown)
    for length in range(longest + 1):
        grown.append(length)
        if sys.getsizeof(grown) != size:
            lengths.append(length)
            size = sys.getsizeof(grown)
    return lengths


def _above_those_around(gaps: np.ndarray) -> np.ndarray:
    """Each gap less the median of those around it."""
    around = [np.median(gaps[max(0, n - AROUND) : n + AROUND + 1]) for n in range(len(gaps))]
    return gaps - np.asarray(around)
