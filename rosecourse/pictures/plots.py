"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook.

Each function draws on the axes or the figure that it is given; 8.2 x 3.6 inches with `layout="constrained"` suit it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..measure.compare import SAME, Comparison, Ladder
from ..measure.metrics import UNITS
from ..measure.samples import Samples, figure_name
from ..measure.stats import Interval, median_interval
from ..records.runs import RecordedLadder
from .colours import BOUNDARY, INK, LINES, SIDES
from .labels import BEHIND, SMALL, legend_below
from .steps import name_rows
from .steps import step_shares as step_shares

PANELS = [("total throughput", "p50"), ("ITL", "p50"), ("ITL", "p95"), ("ITL", "p99")]
NAMES = {"control": f"before again\n({SAME})"}
ROOM_FOR_LABELS = 1.9  # times the longest bar of a ladder
SETTLED = 4  # gaps after which all requests of a batch are running
OTHER_TWICE = "one engine of this recording twice, as a ratio"
WHISKERS = "dots: runs; bars and whiskers: their median, with its 95 % interval"


def lesson_figure(figure: Figure, comparison: Comparison, title: str, yours: Samples | None = None) -> None:
    """Before and after: a panel for each figure; each side's median over its runs stands below its bar, a dot is a run.

    Whiskers are 95 % intervals. The control is grey, a bar, or a band where another rung was measured twice: what
    differs from it by less than it differs from `before` is the machine's doing. yours: the runs of a reader's part, a
    further series. 8.2 x 3.6 inches suit it.
    """
    sides = [side for side in (comparison.before, comparison.control, comparison.after, yours) if side]
    handles: dict[str, Any] = {}
    claim = textwrap.fill(f"throughput: {comparison.claim(comparison.speedup)}", 100)
    figure.suptitle(f"{title}\n{claim}\n{comparison.conditions.device}", fontsize="medium")
    for ax, (metric, statistic) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for place, side in enumerate(sides):
            style, middle = SIDES[side.name], side.interval(metric, statistic)
            values = side.each(metric, statistic)
            bars = ax.bar([place], [middle.value], 0.7, color=style["color"], alpha=0.45)
            handles[NAMES.get(side.name, side.name)] = bars
            ax.plot([place] * len(values), values, **style, linestyle="none", markersize=3, alpha=0.7)
            ax.errorbar([place + 0.2], [middle.value], _errors([middle]), color=INK, capsize=3, linewidth=1.2)
        if (band := _same_again(comparison, metric, statistic)) is not None:
            handles[OTHER_TWICE] = ax.axhspan(*band, color=SIDES["control"]["color"], alpha=0.35, zorder=0)
        ax.set_title(f"{figure_name(metric, statistic).removeprefix('total ')}\n({UNITS[metric]})", fontsize=SMALL + 1)
        digits = ",.0f" if UNITS[metric] == "tokens/s" else ".2f"
        medians = [format(side.typical(metric, statistic), digits) for side in sides]
        if len(sides) > 2:  # six digits are wider than a bar
            medians[1::2] = [f"\n{median}" for median in medians[1::2]]
        ax.set_xticks(range(len(sides)), medians)
        ax.tick_params(labelsize=SMALL)
        ax.tick_params(axis="x", length=0)
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)


def _same_again(comparison: Comparison, metric: str, statistic: str) -> list[float] | None:
    """Where a second time of `before` would lie, by the control of another rung; None where `before` has its own."""
    control = comparison.ratio(metric, statistic).control
    if control is None or len(comparison.control) or not len(comparison.before):
        return None
    power = 1 if UNITS[metric] == "tokens/s" else -1
    return sorted(comparison.before.typical(metric, statistic) * end**power for end in (control.low, control.high))


def _errors(middles: Sequence[Interval]) -> np.ndarray:
    """Intervals as matplotlib draws them: how far down and up from each value, [2, n]."""
    return np.transpose([(middle.value - middle.low, middle.high - middle.value) for middle in middles])


def itl_along_steps_compared(ax: Axes, comparison: Comparison, title: str) -> None:
    """Inter-token latency of the first request, token by token, before and after, each the median over its runs.

    The axis shows the position that the K and V of each step go to. A dotted line stands where the request begins a
    block. The first gaps, in which other requests are still prefilled, may leave the picture at the top.
    """
    conditions, sides = comparison.conditions, comparison.sides
    positions = np.arange(len(comparison.after.itl_along_steps_ms)) + conditions.prompt_tokens
    for side in sides:
        ax.plot(positions, side.itl_along_steps_ms, **LINES[side.name], label=side.name)
    for boundary in positions[positions % conditions.block_size == 0]:
        ax.axvline(boundary, zorder=0.5, **BOUNDARY)
    settled = max(side.itl_along_steps_ms[min(SETTLED, len(positions) - 1) :].max() for side in sides)
    ax.set(xlabel="position in the sequence", ylabel="inter-token latency (ms)", ylim=(0, 1.1 * settled))
    ax.set_title(f"{title}\nmedian of {len(comparison.after)} runs, {conditions.device}")
    legend_below(ax, {name: one for one, name in zip(*ax.get_legend_handles_labels(), strict=True)}.values(), ncols=3)
    ax.spines[["top", "right"]].set_visible(False)


def ladder_throughput(ax: Axes, ladder: Ladder, title: str, shares: Sequence[float] | None = None) -> None:
    """Throughput of each lesson from the top: its runs, their median, and its ratio to the first, with 95 % intervals.

    shares: for each rung, floor seconds / seconds of its decode steps, from `measure.floor`; None leaves them out.
    Figures of 8.2 x 3.6 inches suit up to 14 rungs.
    """
    texts = [f"{rung.throughput.value:,.0f} tokens/s" for rung in ladder.rungs]
    texts = [
        texts[0],
        *(f"{text}, {times.shown(2)}" for text, times in zip(texts[1:], ladder.speedups[1:], strict=True)),
    ]
    if shares is not None:
        texts = [f"{text}, {1 / share:.3g} floors" for text, share in zip(texts, shares, strict=True)]
    names = [f"{rung.name} {name}" for rung, name in zip(ladder.rungs, ladder.titles, strict=True)]
    _draw_runs(ax, [rung.throughputs for rung in ladder.rungs], names, texts)
    ax.set(title=f"{title}\n{ladder.conditions.device}")
    floor = "; floors: a decode step / the least time that it could take" if shares else ""
    ax.set_xlabel(f"throughput (tokens/s)\n{WHISKERS}\nx: ratio to the first{floor}", fontsize=SMALL)


def draw_ladder(ax: Axes, ladder: RecordedLadder, title: str, named: bool = True) -> None:
    """A bar for each rung, the first lesson on top: its tokens/s, and in brackets its share of the floor.

    named: whether the rows are labelled with their lessons. Figures in which a row has 0.25 inches suit it.
    """
    rates = [rung.throughput.value for rung in ladder.rungs]
    titles = [f"{rung.name} {name}" if named else "" for rung, name in zip(ladder.rungs, ladder.titles, strict=True)]
    name_rows(ax, titles)
    ax.barh(range(len(rates)), rates, 0.72, color=SIDES["after"]["color"])
    for row, (rate, share) in enumerate(zip(rates, ladder.shares_of_floor, strict=True)):
        ax.annotate(f"{rate:,.0f} ({100 * share:.2g} %)", (rate, row), (4, 0), color=INK, **BEHIND)
    ax.set_xticks([])
    ax.set_xlim(0, ROOM_FOR_LABELS * max(rates))
    ax.spines["left"].set_visible(True)
    ax.spines["bottom"].set_visible(False)
    ax.set_title(title, fontsize=SMALL + 1, loc="left")
    ax.set_xlabel("tokens/s (share of the floor)", fontsize=SMALL)


def _draw_runs(ax: Axes, values: Sequence[Sequence[float]], names: Sequence[str], texts: Sequence[str]) -> None:
    """A row for each list of runs: a bar up to their median with its interval, a dot for each run, a text behind."""
    middles, places = [median_interval(runs) for runs in values], np.arange(len(values))
    colours = [SIDES["control"]["color"] if name.startswith("control") else "#56B4E9" for name in names]
    ax.barh(places, [middle.value for middle in middles], 0.62, color=colours, edgecolor="white")
    style: dict[str, Any] = {"color": INK, "linestyle": "none"}
    ax.errorbar([m.value for m in middles], places + 0.17, xerr=_errors(middles), capsize=3, linewidth=1.5, **style)
    for place, runs, text in zip(places, values, texts, strict=True):
        ax.plot(runs, np.full(len(runs), place - 0.12), marker="o", markersize=4, alpha=0.6, **style)
        ax.annotate(text, (1, place), (10, 0), xycoords=ax.get_yaxis_transform(), **BEHIND)
    ax.set_yticks(places, names)
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(values) - 0.5, -0.5)
    ax.set_xlim(0, 1.03 * max(max(*runs, middle.high) for runs, middle in zip(values, middles, strict=True)))
    ax.locator_params(axis="x", nbins=5)
    ax.spines[["top", "right", "left"]].set_visible(False)
