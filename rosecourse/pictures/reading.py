"""What readers of streams cost, when they are woken, and how the requests of a run start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..measure.delivery_simulation import Deliveries
from ..measure.pipeline_simulation import READ, RUN
from ..measure.wake_moments import Moments
from ..measure.workload import Run
from .colours import AFTER, BEFORE, COLOURS, INK
from .labels import legend_below
from .two_lanes import FILLS

DELAYS_MS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # where an axis of delays may have a tick


def draw_shares(ax: Axes, shares: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """A line for each column: the share of a rate over the number of readers; the legend has the last one.

    shares: a row for each number of readers. styles: of each column's line, keyword arguments of matplotlib.
    """
    for name, share in shares.iloc[-1].sort_values(ascending=False, kind="stable").items():
        ax.plot(shares.index, 100 * shares[name], linewidth=2, label=f"{name}: {share:.0%}", **styles[name])
    ax.set(xscale="log", title=title, xlabel="readers, each with a stream of its own")
    ax.set(ylabel="% of the rate if nobody reads", ylim=(0, 110 * max(1, shares.to_numpy().max())))
    ax.set_xticks(shares.index, [str(count) for count in shares.index])
    ax.minorticks_off()
    handles = ax.get_legend_handles_labels()[0]
    legend_below(ax, handles, ncols=2, title=f"with {shares.index[-1]} readers", handlelength=3)
    ax.spines[["top", "right"]].set_visible(False)


def draw_wakes(axes: Sequence[Axes], run: Run, slept: Moments, handed: Moments, window: tuple[float, float]) -> None:
    """Above, what the thread that steps does; below, a dot for each token at the moment at which its reader had it.

    axes: two. slept, handed: when the step slept, and when tokens were handed over. window: its begin in seconds of
    `time.perf_counter`, and its length in ms.
    """
    above, below = axes
    zero, window_ms = window
    for moments, what, said in ((slept, RUN, "the step sleeps"), (handed, READ, "tokens are handed over")):
        begins, ends = (1e3 * (np.array(moments).T - zero)).clip(0, window_ms)
        spans = [(start, end - start) for start, end in zip(begins, ends, strict=True) if end > start]
        above.broken_barh(spans, (-0.4, 0.8), facecolor=FILLS[what], edgecolor=INK, linewidth=0.5, label=said)
    above.set(yticks=[0], yticklabels=["steps"], xlim=(0, window_ms))
    for number, one in enumerate(run.times):
        reads = 1e3 * (np.array(one.read) - zero)
        reads = reads[(reads >= 0) & (reads <= window_ms)]
        below.plot(reads, [number] * len(reads), ".", color=INK, markersize=2.5)
    below.set(ylabel="reader", ylim=(-2, len(run.times) + 1), xlim=(0, window_ms))
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)


def draw_turns(ax: Axes, run: Deliveries, title: str, style: Mapping[str, Any]) -> None:
    """A mark for each wake, with the number of tokens that its reader finds. style: BEFORE or AFTER."""
    ink = "white" if style is AFTER else INK
    for wake in run.wakes:
        place = wake.step, wake.reader
        ax.text(*place, str(wake.tokens), ha="center", va="center", color=ink, fontsize=9, zorder=3)
    steps, readers = zip(*[(wake.step, wake.reader) for wake in run.wakes], strict=True)
    ax.scatter(steps, readers, s=150, **style)
    ax.set(title=title, xlabel="step", ylabel="reader", xlim=(-0.6, run.num_steps - 0.4))
    ax.set_xticks(range(run.num_steps))
    ax.set_yticks(range(run.num_readers))
    ax.spines[["top", "right"]].set_visible(False)


def draw_trade(ax: Axes, paid: pd.DataFrame, labels: Sequence[str], title: str) -> None:
    """A mark for each way to wake readers: what it gives in tokens/s, with its lowest and highest run, by the delay.

    paid: with the columns `delay p50 (ms)`, `tokens/s`, `lowest` and `highest`; its first row is the way before.
    labels: of the rows, for the legend, which adds both figures.
    """
    columns = (paid[name] for name in ("delay p50 (ms)", "tokens/s", "lowest", "highest"))
    for number, (label, delay, *rates) in enumerate(zip(labels, *columns, strict=True)):
        rate, lowest, highest = (one / 1e3 for one in rates)
        told = f"{label}: {rate:.1f}k tokens/s, {delay:.3g} ms"
        style = {"color": list(COLOURS.values())[number - 1], "marker": "sD^vPX*"[number - 1]} if number else BEFORE
        ax.errorbar(delay, rate, [[rate - lowest], [highest - rate]], label=told, linestyle="none", **style)
    ax.set(xscale="log", ylim=(0, 1.12 * paid["highest"].max() / 1e3), title=title)
    delays = paid["delay p50 (ms)"]
    ticks = [ms for ms in DELAYS_MS if delays.min() / 2 < ms < 2 * delays.max()]
    ax.set_xticks(ticks, [f"{ms:g}" for ms in ticks])
    ax.minorticks_off()
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)
    ax.spines[["top", "right"]].set_visible(False)


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
    admitted, first, second = start[np.lexsort((start[:, 0], start[:, 1]))].T
    places = np.arange(len(start))
    ax.hlines(places, admitted, first, color=style["color"], linewidth=1.2)
    ax.plot(second, places, style["marker"], color=INK, markersize=2.5)
    ax.set(title=title, ylabel="request", ylim=(-2, len(start) + 1))
    ax.spines[["top", "right"]].set_visible(False)
