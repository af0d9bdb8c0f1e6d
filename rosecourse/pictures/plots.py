"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook.

Each function draws on the axes, or the whole figure, that it is given, and nothing else. Figures of 9 x 3.6 inches with
`layout="constrained"` suit them. The pictures of decode steps are in `steps`, and the curves by position in
`along_steps`; notebooks call all of them from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..measure.compare import Comparison, Ladder
from ..measure.samples import Samples
from ..measure.stats import Interval, Ratio, median_interval
from ..measure.traffic import LOAD, TrafficComparison
from .along_steps import LINES, itl_along_steps, itl_along_steps_compared
from .colours import AFTER, BEFORE, BOUNDARY, COLOURS, INK
from .labels import APART, BEHIND, SMALL, axes_points, text_points
from .steps import effect, ladder_of_steps, step_anatomies

__all__ = [
    "AFTER",
    "BEFORE",
    "BOUNDARY",
    "COLOURS",
    "effect",
    "itl_along_steps",
    "itl_along_steps_compared",
    "itl_distribution",
    "ladder_of_steps",
    "ladder_throughput",
    "ladder_times",
    "step_anatomies",
    "throughput_compared",
    "traffic_compared",
]

STYLES = {"before": BEFORE, "after": AFTER}
WHISKERS = "whiskers: 95 % interval of the median; ratios: to the first"


def throughput_compared(ax: Axes, comparison: Comparison, title: str) -> None:
    """Every run as a dot, and each side's median with its 95 % interval; the ratio with its interval in the title."""
    for place, side in enumerate(comparison.sides):
        _runs_and_median(ax, place, side, STYLES[side.name])
    ax.set_xticks(range(len(comparison.sides)), [side.name for side in comparison.sides])
    claim = comparison.claim(comparison.speedup, "faster", "slower")
    ax.set(title=f"{title}: {claim}\n{comparison.conditions.device}", ylabel="throughput (tokens/s)", xlim=(-0.5, 1.9))
    ax.set_xlabel("dots: runs, in their order; bar and whiskers: their median with its 95 % interval", color=INK)
    ax.set_ylim(0, 1.12 * max(comparison.before.throughputs + comparison.after.throughputs))
    ax.spines[["top", "right"]].set_visible(False)


def _runs_and_median(ax: Axes, place: float, samples: Samples, style: Mapping[str, Any]) -> None:
    """A bar up to the median with its interval, and a dot for each run, in the order of the runs."""
    values, middle = samples.throughputs, samples.throughput
    spread = np.linspace(-0.22, -0.06, len(values)) if len(values) > 1 else [-0.14]
    ax.bar([place], [middle.value], 0.6, color=style["color"], alpha=0.3)
    ax.plot(place + np.asarray(spread), values, **style, linestyle="none", markersize=7, markeredgecolor="white")
    errors = [[middle.value - middle.low], [middle.high - middle.value]]
    ax.errorbar([place + 0.15], [middle.value], errors, color=INK, marker=".", capsize=5, linewidth=1.5)
    ax.annotate(
        f"{middle.value:,.0f} tokens/s\n[{middle.low:,.0f}, {middle.high:,.0f}]",
        (place + 0.3, middle.value),
        (8, 0),
        textcoords="offset points",
        va="center",
    )


def itl_distribution(ax: Axes, comparison: Comparison, title: str) -> None:
    """The share of gaps between tokens that are longer than x, before and after, pooled over requests and runs.

    The share is drawn on a logarithmic scale, so that the tail can be seen and p50, p95 and p99 are three heights.
    """
    for side in comparison.sides:
        style, gaps = STYLES[side.name], np.sort(side.itl_ms)
        longer = 1 - np.arange(len(gaps)) / len(gaps)
        ax.step(gaps, longer, where="pre", **LINES[side.name])
        marks = side.itl_percentiles_ms
        label = "{}: p50 {:.2f}, p95 {:.2f}, p99 {:.2f} ms (N = {:,})".format(side.name, *marks, len(gaps))
        ax.plot(marks, [0.5, 0.05, 0.01], **style, linestyle="none", markersize=8, markeredgecolor="white", label=label)
    for share, name in ((0.5, "p50"), (0.05, "p95"), (0.01, "p99")):
        ax.axhline(share, color="#BBBBBB", linewidth=0.8, zorder=0)
        ax.annotate(name, (1, share), (4, 0), ax.get_yaxis_transform(), "offset points", va="center", color=INK)
    ax.set(title=f"{title}\n{comparison.conditions.device}", yscale="log", ylim=(5e-4, 1.3))
    ax.set(xlabel="inter-token latency (ms)", ylabel="share of gaps that are longer")
    ax.set_yticks([1, 0.1, 0.01, 0.001], ["100 %", "10 %", "1 %", "0.1 %"])
    ax.set_xlim(0, 1.05 * max(float(np.percentile(s.itl_ms, 99.95)) for s in comparison.sides))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=1, frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def traffic_compared(figure: Figure, comparison: TrafficComparison, title: str) -> None:
    """Mixed traffic before and after: above the burst's throughput, below the gaps between tokens under load.

    The function draws on the whole figure; 9 x 7.6 inches with `layout="constrained"` suit it.
    """
    figure.suptitle(title)
    top, bottom = figure.subplots(2, 1, height_ratios=[1, 1.1])
    throughput_compared(top, comparison.burst, "All requests at once")
    itl_distribution(bottom, comparison.load, f"At {comparison.rate:.1f} requests/s, {LOAD:.0%} of the capacity before")


def ladder_throughput(ax: Axes, ladder: Ladder, title: str, shares: Sequence[float] | None = None) -> None:
    """Throughput of each lesson from the top, and its ratio to the first, with their 95 % intervals.

    shares: for each rung, floor seconds / seconds of its decode steps, from `measure.floor`; None leaves them out.
    Figures of 9 x 3.6 inches suit up to 14 rungs.
    """
    middles = [rung.throughput for rung in ladder.rungs]
    texts = [f"{middle.value:,.0f} tokens/s{_times(place, ladder.speedups)}" for place, middle in enumerate(middles)]
    if shares is not None:
        texts = [f"{text}, {100 * share:.2g} % of the floor" for text, share in zip(texts, shares, strict=True)]
    _draw_ladder(ax, ladder, middles, texts)
    ax.set(title=f"{title}\n{ladder.conditions.device}", xlabel=f"throughput (tokens/s); {WHISKERS}")


def ladder_times(ax: Axes, ladder: Ladder, metric: str, title: str) -> None:
    """A time of each rung in milliseconds, less being better, and its ratio to the first, with 95 % intervals.

    metric: `decode time` or `total time`.
    """
    middles = [median_interval([1e3 * seconds for seconds in rung.values(metric)]) for rung in ladder.rungs]
    ratios = ladder.ratios(metric)
    texts = [f"{middle.value:,.2f} ms{_times(place, ratios)}" for place, middle in enumerate(middles)]
    _draw_ladder(ax, ladder, middles, texts)
    ax.set(title=f"{title}\n{ladder.conditions.device}", xlabel=f"{metric} (ms, less is better); {WHISKERS}")


def _times(place: int, ratios: Sequence[Ratio]) -> str:
    """The ratio to the first rung, as the text behind a bar ends; nothing for the first itself."""
    times = ratios[place]
    return f", {times.value:.2f}x [{times.low:.2f}, {times.high:.2f}]" if place else ""


def _draw_ladder(ax: Axes, ladder: Ladder, middles: Sequence[Interval], texts: Sequence[str]) -> None:
    """A bar for each rung with its interval and a text behind it; the axis ends where all texts fit."""
    values, places = [middle.value for middle in middles], range(len(middles))
    ax.set_yticks(places, [f"{rung.name} {name}" for rung, name in zip(ladder.rungs, ladder.titles, strict=True)])
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(middles) - 0.5, -0.5)
    ax.barh(places, values, 0.62, color="#56B4E9", edgecolor="white")
    errors = np.transpose([(m.value - m.low, m.high - m.value) for m in middles])
    ax.errorbar(values, places, xerr=errors, color=INK, linestyle="none", capsize=3, linewidth=1.5)
    width = axes_points(ax)[0]
    needed = [1.1 * text_points(text) + 2 * APART for text in texts]
    ax.set_xlim(0, max(m.high / max(0.2, 1 - points / width) for m, points in zip(middles, needed, strict=True)))
    for place, (middle, text) in enumerate(zip(middles, texts, strict=True)):
        ax.annotate(text, (middle.high, place), (APART, 0), **BEHIND)
    ax.spines[["top", "right", "left"]].set_visible(False)
