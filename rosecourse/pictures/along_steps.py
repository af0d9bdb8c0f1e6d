"""The time between the tokens of one request, position by position, and the steps in which blocks begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..measure.compare import Comparison
from ..measure.samples import Samples
from ..measure.workload import Run
from .colours import AFTER, BAND, BEFORE, BOUNDARY, INK
from .labels import BEHIND, legend_below

SETTLED = 4  # gaps after which all requests of a batch are running

# After is drawn last, thinner and with gaps, so that both can be seen where one lies on the other.
LINES: dict[str, dict[str, Any]] = {
    "before": {"color": BEFORE["color"], "linestyle": "-", "linewidth": 2.6},
    "after": {"color": AFTER["color"], "linestyle": (0, (4, 1.6)), "linewidth": 1.1},
}


def itl_along_steps(ax: Axes, itl_seconds: Sequence[float], first_position: int, block_size: int, title: str) -> None:
    """Inter-token latency against the position of the token, with the block boundaries marked.

    itl_seconds: the gap before each token of one request; first_position: the position whose K and V the first of
    these steps appended.
    """
    positions = np.arange(first_position, first_position + len(itl_seconds))
    _block_boundaries(ax, positions[positions % block_size == 0], 0)
    ax.plot(positions, 1e3 * np.asarray(itl_seconds), color=INK, linewidth=1)
    _finish(ax, title)


def itl_along_steps_compared(ax: Axes, comparison: Comparison, title: str) -> None:
    """Inter-token latency of the first request, token by token, before and after, each the median over its runs.

    The axis shows the position that the K and V of each step go to. A dotted line stands where the request begins a
    block. Requests of a stream that started some steps later begin theirs as many positions to the right: a pale band
    reaches that far, as the runs' own token times tell. Where it would be as wide as a block, every step begins blocks,
    and none is marked. The first gaps, in which other requests are still prefilled, may leave the picture at the top: a
    text says how long they are.
    """
    conditions = comparison.conditions
    positions = np.arange(len(comparison.after.itl_along_steps_ms)) + conditions.prompt_tokens
    boundaries = positions[positions % conditions.block_size == 0]
    if len(boundaries):
        reach = int(positions[-1] - boundaries[0])
        apart = max(starts_apart(side.runs, reach) for side in comparison.sides)
        if apart < conditions.block_size:
            _block_boundaries(ax, boundaries, apart)
    for side in comparison.sides:
        ax.plot(positions, side.itl_along_steps_ms, **LINES[side.name], label=side.name)
    _finish(ax, f"{title}\nmedian of {len(comparison.after.runs)} runs, {conditions.device}")
    ax.set_ylim(0, 1.1 * max(_settled(side).max() for side in comparison.sides))
    _note_prefill(ax, comparison.sides, float(positions[0]))


def starts_apart(runs: Iterable[Run], reach: int) -> int:
    """How many decode steps the first request is ahead of the last one: of each run, and the median of the runs.

    reach: requests that are farther behind are left out, as they begin no block before the first request ends.
    """
    farthest = [max((n for n in _behind(run) if n <= reach), default=0) for run in runs]
    return int(np.median(farthest))


def _behind(run: Run) -> list[int]:
    """How many decode steps the first request had made before the first step of each of the others.

    A step gives its tokens to all requests at one moment; the first token comes from the prefill.
    """
    first, *others = [times.tokens for times in run.times if len(times.tokens) > 1]
    return [max(0, int(np.searchsorted(first, tokens[1], side="right")) - 2) for tokens in others]


def _settled(side: Samples) -> np.ndarray:
    """The gaps after those in which others may still be prefilled; the last gap where there are so few."""
    gaps = side.itl_along_steps_ms
    return gaps[min(SETTLED, len(gaps) - 1) :]


def _note_prefill(ax: Axes, sides: Sequence[Samples], first: float) -> None:
    """A text on the first gaps where they leave the picture; the axis makes room for it."""
    above = {side.name: side.itl_along_steps_ms[:SETTLED].max() for side in sides}
    top = ax.get_ylim()[1]
    told = ", ".join(f"{name} {gap:.1f} ms" for name, gap in above.items() if gap > top)
    if told:
        ax.set_ylim(0, 1.25 * top)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        text = f"↑ others are prefilled, gaps up to: {told}"
        ax.annotate(text, (first, 1.25 * top), (4, -12), bbox=box, color=INK, **BEHIND)


def _block_boundaries(ax: Axes, boundaries: np.ndarray, apart: int) -> None:
    """A line at each boundary, and a band over the steps in which requests that started later begin their blocks."""
    for boundary in boundaries:
        ax.axvline(boundary, **BOUNDARY)
        if apart:
            ax.axvspan(boundary + 0.5, boundary + apart + 0.5, **BAND)


def _finish(ax: Axes, title: str) -> None:
    ax.set(title=title, xlabel="position in the sequence", ylabel="inter-token latency (ms)", ylim=(0, None))
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        legend_below(ax, unique.values(), ncols=len(unique), handlelength=2)
    ax.spines[["top", "right"]].set_visible(False)
