"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook.

Each function draws on the axes, or the whole figure, that it is given, and nothing else. Figures of 9 x 3.6 inches with
`layout="constrained"` suit them. The pictures of decode steps are in `steps`; notebooks call all of them from here.
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
from .colours import AFTER, BEFORE, BOUNDARY, COLOURS, INK
from .labels import APART, BEHIND, LEADER, SMALL, axes_points, text_points
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
DASHES: dict[str, Any] = {"before": "-", "after": (0, (4, 1.2))}
WHISKERS = "whiskers: 95 % interval of the median; ratios: to the first"
SETTLED = 4  # gaps after which all requests of a batch are running


def itl_along_steps(ax: Axes, itl_seconds: Sequence[float], first_position: int, block_size: int, title: str) -> None:
    """Inter-token latency against the position of the token, with the block boundaries marked.

    itl_seconds: the gap before each token of one request; first_position: the position whose K and V the first of
    these steps appended.
    """
    positions = np.arange(first_position, first_position + len(itl_seconds))
    gaps = 1e3 * np.asarray(itl_seconds)
    p50, p99 = np.percentile(gaps, [50, 99])
    _block_boundaries(ax, positions[positions % block_size == 0])
    ax.plot(positions, gaps, color=INK, linewidth=1)
    for value, name, style in ((p50, "p50", "-"), (p99, "p99", "--")):
        ax.axhline(value, color="#D55E00", linewidth=1, linestyle=style, label=f"{name} {value:.2f} ms")
    _finish_along_steps(ax, title, ncols=3)


def itl_along_steps_compared(ax: Axes, comparison: Comparison, title: str) -> None:
    """Inter-token latency of the first request, token by token, before and after, each the median over its runs.

    The axis shows the position that the K and V of each step go to; steps in which a block begins have a marker: before
    lesson 059 they stand out. The first gaps, in which other requests are still prefilled, may leave the picture at
    the top: a text says how long they are.
    """
    conditions = comparison.conditions
    positions = np.arange(len(comparison.after.itl_along_steps_ms)) + conditions.prompt_tokens
    starts = positions % conditions.block_size == 0
    _block_boundaries(ax, positions[starts])
    top = 1.1 * max(_settled(side).max() for side in comparison.sides)
    for side in comparison.sides:
        style, gaps = STYLES[side.name], side.itl_along_steps_ms
        label = f"{side.name}, median over runs: p50 {np.median(gaps):.2f}, highest {_settled(side).max():.2f} ms"
        label += f"; p99 of all single gaps {side.figure('ITL', 'p99'):.2f} ms"
        ax.plot(positions, gaps, color=style["color"], linestyle=DASHES[side.name], linewidth=1.5, label=label)
        ax.plot(positions[starts], gaps[starts], **style, linestyle="none", markersize=6, markeredgecolor="white")
    _finish_along_steps(ax, f"{title}\nmedian of {len(comparison.after.runs)} runs, {conditions.device}", ncols=1)
    ax.set_ylim(0, top)
    _note_prefill(ax, comparison.sides, float(positions[0]))


def _settled(side: Samples) -> np.ndarray:
    """The gaps after those in which others may still be prefilled; the last gap where there are so few."""
    gaps = side.itl_along_steps_ms
    return gaps[min(SETTLED, len(gaps) - 1) :]


def _note_prefill(ax: Axes, sides: Sequence[Samples], first: float) -> None:
    """An arrow where the first gaps leave the picture, and how long they are; the axis makes room for it."""
    above = {side.name: side.itl_along_steps_ms[:SETTLED].max() for side in sides}
    top = ax.get_ylim()[1]
    told = ", ".join(f"{name} {gap:.1f} ms" for name, gap in above.items() if gap > top)
    if told:
        arrow = LEADER | {"arrowstyle": "-|>", "relpos": (0, 0.5)}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        text = f"others are prefilled, gaps up to: {told}"
        top *= 1.25
        ax.set_ylim(0, top)
        ax.annotate(text, (first, top), (12, -14), arrowprops=arrow, bbox=box, color=INK, **BEHIND)


def _block_boundaries(ax: Axes, boundaries: np.ndarray) -> None:
    for boundary in boundaries:
        ax.axvline(boundary, **BOUNDARY)


def _finish_along_steps(ax: Axes, title: str, ncols: int) -> None:
    ax.set(title=title, xlabel="position in the sequence", ylabel="inter-token latency (ms)", ylim=(0, None))
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    ax.legend(
        unique.values(),
        unique.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.18),
        ncols=ncols,
        frameon=False,
        columnspacing=1,
    )
    ax.spines[["top", "right"]].set_visible(False)


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
        ax.step(gaps, longer, where="pre", color=style["color"], linestyle=DASHES[side.name], linewidth=1.5)
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
