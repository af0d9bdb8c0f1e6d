"""What readers of streams cost, and when they are woken."""

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
from .colours import AFTER, BEFORE, INK
from .two_lanes import FILLS

LABELS_APART = 6  # per cent of the rate, between two names
# Right of the lines, in times the most readers: leaders, pieces of the lines with a mark in the middle, and names.
LEADER_ENDS, SAMPLE, NAMES_BEGIN, ROOM_FOR_NAMES = 1.35, (1.35, 1.63, 1.95), 2.15, 18
DELAYS_MS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # where an axis of delays may have a tick


def draw_shares(ax: Axes, shares: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """A line for each column, with its name at the right: the share of a rate over the number of readers.

    shares: a row for each number of readers. styles: of each column's line, keyword arguments of matplotlib. Before
    each name stands a piece of its line, and a thin one leads there from the line's end.
    """
    for name in shares:
        ax.plot(shares.index, 100 * shares[name], linewidth=2, **styles[name])
    ax.set(xscale="log", title=title, xlabel="readers, each with a stream of its own")
    ax.set(ylabel="% of the rate if nobody reads", ylim=(0, 110 * max(1, shares.to_numpy().max())))
    ax.set_xticks(shares.index, [str(count) for count in shares.index])
    ax.minorticks_off()
    most, place = shares.index[-1], float("inf")
    bent, sample, text = most * LEADER_ENDS, most * np.array(SAMPLE), most * NAMES_BEGIN
    for name, share in shares.loc[most].sort_values(ascending=False, kind="stable").items():
        place = min(100 * share, place - LABELS_APART)
        ax.plot([most, bent], [100 * share, place], color=styles[name].get("color"), linewidth=0.8, zorder=1)
        ax.plot(sample, [place] * len(sample), linewidth=2, markevery=[1], **styles[name])
        ax.annotate(f"{name}: {share:.0%}", (text, place), va="center", color=INK, annotation_clip=False)
    ax.set_xlim(right=ROOM_FOR_NAMES * most)
    ax.spines[["top", "right"]].set_visible(False)


def draw_wakes(axes: Sequence[Axes], run: Run, slept: Moments, handed: Moments, window: tuple[float, float]) -> None:
    """Above, what the thread that steps does; below, a dot for each token at the moment at which its reader had it.

    axes: two. slept, handed: when the step slept, and when tokens were handed over. window: its begin in seconds of
    `time.perf_counter`, and its length in ms.
    """
    above, below = axes
    zero, window_ms = window
    for moments, what, said in ((slept, RUN, "the step sleeps"), (handed, READ, "tokens are handed over")):
        begins, ends = 1e3 * (np.array(moments).T - zero)
        inside = (ends > 0) & (begins < window_ms)
        begins, ends = begins[inside].clip(0, window_ms), ends[inside].clip(0, window_ms)
        style: dict[str, Any] = {"color": FILLS[what], "edgecolor": INK, "linewidth": 0.5}
        above.barh(0 * begins, ends - begins, left=begins, label=said, **style)
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
    labels: of the rows. They stand in a line above all runs, so that none hides a mark, and thin lines lead to them.
    """
    delays, top = paid["delay p50 (ms)"], 1.12 * paid["highest"].max() / 1e3
    left, right = delays.min() / 2, 1.6 * delays.max()
    apart = (right / left) ** 0.1  # between labels, on a logarithmic axis
    reached = 0.0
    for number in np.argsort(delays.to_numpy(), kind="stable"):
        row, style = paid.iloc[number], AFTER if number else BEFORE
        delay, rate = row["delay p50 (ms)"], row["tokens/s"] / 1e3
        ax.vlines(delay, row["lowest"] / 1e3, row["highest"] / 1e3, color=INK, linewidth=1, zorder=1.5)
        ax.scatter(delay, rate, s=50, edgecolor="white", zorder=2 + (number == 0), **style)
        reached = max(delay, reached * apart)
        ax.plot([delay, reached], [row["highest"] / 1e3, top], color=INK, linewidth=0.5, linestyle=":", zorder=1)
        ax.annotate(labels[number], (reached, top), ha="center", va="bottom", color=INK)
    ax.set(xscale="log", xlim=(left, max(right, reached * 1.1)), ylim=(0, 1.12 * top), title=title)
    ticks = [n for n in DELAYS_MS if left < n < right]
    ax.set_xticks(ticks, [f"{n:g}" for n in ticks])
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
