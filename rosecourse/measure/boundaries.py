"""The steps around a block boundary: what they take beside the others, and how much of the tail they make up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..checks import require
from ..errors import ConfigError
from .compare import Comparison
from .samples import Samples

KINDS = ("a block begins", "the step after", "all others")
SLOWEST = 0.01  # the share of gaps that lie above p99


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
