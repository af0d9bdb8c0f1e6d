"""The gap after a fork: the time between the first two tokens of each sample, beside the gaps that follow."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from ..measure.compare import Comparison
from ..measure.metrics import itl
from ..measure.samples import Samples
from .along_steps import LINES
from .colours import AFTER, BEFORE, INK

STYLES = {"before": BEFORE, "after": AFTER}
FIRST, LATER = "first gap", "later gaps"


def first_gaps_ms(side: Samples) -> list[np.ndarray]:
    """For each run the gap between the first two tokens of each of its requests, in milliseconds."""
    return [1e3 * np.array([itl(times)[0] for times in run.times if len(times.tokens) > 1]) for run in side.runs]


def gaps_by_token(ax: Axes, comparison: Comparison, title: str) -> None:
    """The gap before each token but the first, before and after: the median over requests, then over runs.

    The requests' own numbers of tokens count: token 2 is the one of the step after the prefill, in which samples that
    were forked off it separate. Requests must have as many tokens each.
    """
    for side in comparison.sides:
        of_runs = [np.median([itl(times) for times in run.times], axis=0) for run in side.runs]
        gaps = 1e3 * np.median(of_runs, axis=0)
        tokens = np.arange(2, 2 + len(gaps))
        style = LINES[side.name] | STYLES[side.name]
        ax.plot(tokens, gaps, **style, markevery=[0], markersize=9, markeredgecolor="white", label=side.name)
    ax.axvspan(1.6, 2.4, color="#000000", alpha=0.06, linewidth=0)
    ax.annotate("the step\nafter the fork", (2.4, 0), (6, 8), textcoords="offset points", color=INK, va="bottom")
    ax.set(title=f"{title}\n{_runs(comparison)}", xlabel="number of the token", ylabel="gap before it (ms)")
    ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
    ax.legend(loc="lower right", frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def first_gaps(ax: Axes, comparison: Comparison, title: str) -> None:
    """The first gap of each run's requests, and below it their later gaps: dots, and a bar at the median of all.

    A step gives its tokens to all requests at one moment. Gaps of a run that are equal to a microsecond share a dot.
    """
    rows = [(kind, side) for kind in (FIRST, LATER) for side in comparison.sides]
    for place, (kind, side) in enumerate(rows):
        style = STYLES[side.name]
        gaps = np.concatenate(first_gaps_ms(side) if kind == FIRST else _later_ms(side))
        dots = np.unique(gaps.round(3))
        spread = place + 0.22 * np.sin(np.arange(len(dots)) * 2.4)  # the same on every machine
        ax.plot(dots, spread, **style, linestyle="none", markersize=5, alpha=0.5, markeredgecolor="none")
        middle = float(np.median(gaps))
        ax.plot([middle, middle], [place - 0.34, place + 0.34], color=INK, linewidth=2.5)
        ax.annotate(f"median {middle:.2f} ms", (middle, place - 0.34), (4, 2), textcoords="offset points", color=INK)
    ax.set_yticks(range(len(rows)), [f"{kind}, {side.name}" for kind, side in rows])
    ax.set(title=f"{title}\n{_runs(comparison)}", xlabel="gap between two tokens (ms)")
    ax.set_xlim(0, 1.15 * ax.get_xlim()[1])  # room for the text behind the last bar
    ax.set_ylim(len(rows) - 0.4, -0.75)
    ax.spines[["top", "right"]].set_visible(False)


def _later_ms(side: Samples) -> list[np.ndarray]:
    """For each run all gaps of its requests but the first ones, in milliseconds."""
    return [1e3 * np.array([gap for times in run.times for gap in itl(times)[1:]]) for run in side.runs]


def _runs(comparison: Comparison) -> str:
    return f"{comparison.conditions.work}, {len(comparison.after.runs)} runs, {comparison.conditions.device}"
