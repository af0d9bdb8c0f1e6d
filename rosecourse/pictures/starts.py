"""How the requests of a run start: admission, first token and second token on a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..measure.workload import Run
from .colours import INK


def start_of(run: Run) -> np.ndarray:
    """float64 [requests, 3], ms from the first submit: when each was admitted, had its first token, and its second."""
    zero = min(one.submitted for one in run.times)
    moments = [(one.admitted - zero, one.tokens[0] - zero, one.tokens[1] - zero) for one in run.times]
    return 1e3 * np.array(moments)


def typical_start(runs: Sequence[Run]) -> np.ndarray:
    """`start_of` the run whose last second token comes at the median time."""
    starts = sorted((start_of(run) for run in runs), key=lambda one: one[:, 2].max())
    return starts[len(starts) // 2]


def prefills_of(start: np.ndarray) -> list[tuple[int, float]]:
    """Of each prefill: how many requests, and ms from their first admission to their first tokens."""
    moments = start[:, 1].round(3)
    groups = [start[moments == moment] for moment in np.unique(moments)]
    return [(len(group), float(group[0, 1] - group[:, 0].min())) for group in groups]


def draw_start(ax: Axes, start: np.ndarray, title: str, style: Mapping[str, Any]) -> None:
    """A bar for each request from its admission to its first token, and a mark at its second one; style: see AFTER."""
    for place, (admitted, first, second) in enumerate(start[np.lexsort((start[:, 0], start[:, 1]))]):
        ax.plot([admitted, first], [place, place], color=style["color"], linewidth=1.2)
        ax.plot(second, place, style["marker"], color=INK, markersize=2.5)
    ax.set(title=title, ylabel="request", ylim=(-2, len(start) + 1))
    ax.spines[["top", "right"]].set_visible(False)
