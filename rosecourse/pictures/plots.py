"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook.

Each function draws on the axes that it is given, and nothing else. Figures of 9 x 3.6 inches with
`layout="constrained"` suit them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..measure.anatomy import PART_NAMES
from ..measure.compare import Comparison, Ladder
from ..measure.samples import Samples
from ..measure.stats import median_interval
from .colours import AFTER, BEFORE, BOUNDARY, COLOURS, INK

STYLES = {"before": BEFORE, "after": AFTER}
SETTLED = 4  # gaps after which all requests of a batch are running


def step_anatomy(ax: Axes, seconds_by_part: Mapping[str, Sequence[float]], title: str) -> None:
    """One bar: the median time of a decode step, cut into its parts. Input: seconds of each step, by part."""
    left = 0.0
    for part, seconds in seconds_by_part.items():
        width = 1e3 * float(np.median(seconds))
        ax.barh(
            [0], [width], left=left, color=COLOURS[part], edgecolor="white", label=f"{PART_NAMES[part]}: {width:.2f} ms"
        )
        left += width
    ax.set(title=title, xlabel="ms per decode step (median)", yticks=[], ylim=(-0.5, 0.5), xlim=(0, left * 1.02))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=2, frameon=False)
    ax.spines[["top", "right", "left"]].set_visible(False)


def step_anatomies(ax: Axes, steps: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> None:
    """A bar for each name, such as before and after, on one scale: the median time of a decode step by part.

    steps: for each name what `decode_anatomy` gives, seconds of each step by part; drawn from the top in their order.
    """
    medians = {name: {part: 1e3 * float(np.median(s)) for part, s in parts.items()} for name, parts in steps.items()}
    rows, totals = range(len(medians)), np.zeros(len(medians))
    for part in next(iter(medians.values())):
        widths = [parts[part] for parts in medians.values()]
        label = f"{PART_NAMES[part]}: {' → '.join(f'{width:.2f}' for width in widths)} ms"
        ax.barh(rows, widths, 0.6, left=totals, color=COLOURS[part], edgecolor="white", label=label)
        totals += widths
    for row, total in zip(rows, totals, strict=True):
        ax.annotate(f"{total:.2f} ms", (total, row), (5, 0), textcoords="offset points", va="center")
    ax.set(title=title, xlabel="ms per decode step (median of each part)", xlim=(0, 1.12 * max(totals)))
    ax.set_yticks(rows, list(medians))
    ax.set_ylim(len(medians) - 0.5, -0.5)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=2, frameon=False)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)


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

    Where the length of the prompt is known, the axis shows positions, and steps in which a block begins are marked:
    before lesson 059 they stand out. The first gaps, in which other requests are still prefilled, may leave the picture
    at the top; `highest` leaves them out.
    """
    device, prompt_tokens = comparison.conditions.device, comparison.conditions.prompt_tokens
    steps = np.arange(len(comparison.after.itl_along_steps_ms)) + (2 if prompt_tokens is None else prompt_tokens)
    starts = np.zeros(len(steps), bool) if prompt_tokens is None else steps % comparison.conditions.block_size == 0
    _block_boundaries(ax, steps[starts])
    top = 0.0
    for side in comparison.sides:
        style, gaps = STYLES[side.name], side.itl_along_steps_ms
        highest = gaps[min(SETTLED, len(gaps) - 1) :].max()
        top = max(top, 1.1 * highest)
        label = f"{side.name}: median {np.median(gaps):.2f}, highest {highest:.2f} ms"
        label += f"; p99 of all gaps {side.figure('ITL', 'p99'):.2f} ms"
        ax.plot(steps, gaps, color=style["color"], linewidth=1.5, label=label)
        ax.plot(steps[starts], gaps[starts], **style, linestyle="none", markersize=6, markeredgecolor="white")
    _finish_along_steps(ax, f"{title}\nmedian of {len(comparison.after.runs)} runs, {device}", ncols=1)
    ax.set(ylim=(0, top), xlabel="token of the request" if prompt_tokens is None else "position in the sequence")


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
        ax.step(gaps, longer, where="pre", color=style["color"], linewidth=1.5)
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


def ladder_throughput(ax: Axes, ladder: Ladder, title: str, shares: Sequence[float] | None = None) -> None:
    """Throughput of each lesson, and its ratio to the first, with their 95 % intervals.

    shares: for each rung, floor seconds / seconds of its decode steps, from `measure.floor`; None leaves them out.
    """
    middles = [rung.throughput for rung in ladder.rungs]
    values = [middle.value for middle in middles]
    errors = np.transpose([(m.value - m.low, m.high - m.value) for m in middles])
    places = np.arange(len(values))
    ax.bar(places, values, 0.62, color="#56B4E9", edgecolor="white")
    ax.errorbar(places, values, errors, color=INK, linestyle="none", capsize=5, linewidth=1.5)
    for place, (middle, speedup) in enumerate(zip(middles, ladder.speedups, strict=True)):
        text = f"{middle.value:,.0f}" + (
            f"\n{speedup.value:.2f}x [{speedup.low:.2f}, {speedup.high:.2f}]" if place else ""
        )
        text += f"\n{100 * shares[place]:.2g} % of the floor" if shares is not None else ""
        ax.annotate(
            text, (place, middle.high), (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=9
        )
    names = (f"{rung.name}\n{fill(name, 15)}" for rung, name in zip(ladder.rungs, ladder.titles, strict=True))
    ax.set_xticks(places, list(names))
    ax.set(title=f"{title}\n{ladder.conditions.device}", ylabel="throughput (tokens/s)")
    ax.set_xlabel("whiskers: 95 % interval of the median; ratios: to the first, of neighbouring runs", color=INK)
    ax.set_ylim(0, 1.35 * max(middle.high for middle in middles))
    ax.spines[["top", "right"]].set_visible(False)


def ladder_times(ax: Axes, ladder: Ladder, metric: str, title: str) -> None:
    """A time of each rung in milliseconds, less being better, and its ratio to the first, with 95 % intervals.

    metric: `decode time` or `total time`.
    """
    middles = [median_interval([1e3 * seconds for seconds in rung.values(metric)]) for rung in ladder.rungs]
    values = [middle.value for middle in middles]
    places = np.arange(len(values))
    ax.bar(places, values, 0.62, color="#56B4E9", edgecolor="white")
    errors = np.transpose([(m.value - m.low, m.high - m.value) for m in middles])
    ax.errorbar(places, values, errors, color=INK, linestyle="none", capsize=5, linewidth=1.5)
    for place, (middle, times) in enumerate(zip(middles, ladder.ratios(metric), strict=True)):
        text = f"{middle.value:,.2f} ms" + (
            f"\n{times.value:.2f}x [{times.low:.2f}, {times.high:.2f}]" if place else ""
        )
        at = (place, middle.high)
        ax.annotate(text, at, (0, 5), textcoords="offset points", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(places, [f"{rung.name}\n{fill(n, 15)}" for rung, n in zip(ladder.rungs, ladder.titles, strict=True)])
    ax.set(title=f"{title}\n{ladder.conditions.device}", ylabel=f"{metric} (ms, less is better)")
    ax.set_xlabel("whiskers: 95 % interval of the median; ratios: to the first, of neighbouring runs", color=INK)
    ax.set_ylim(0, 1.35 * max(middle.high for middle in middles))
    ax.spines[["top", "right"]].set_visible(False)
