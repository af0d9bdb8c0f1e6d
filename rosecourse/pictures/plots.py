"""Pictures of measurements: colour-blind safe, with units, readable at the width of a notebook.

Each function draws on the axes, or the whole figure, that it is given, and nothing else. Figures of 8.2 x 3.6 inches
with `layout="constrained"` suit them. The pictures of decode steps are in `steps`, and the curves by position in
`along_steps`; notebooks call all of them from here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..measure.compare import SAME, Comparison, Ladder
from ..measure.samples import Samples
from ..measure.stats import FEWEST_PAIRS, Ratio, median_interval
from ..measure.traffic import LOAD, TrafficComparison
from ..records.measured import MeasuredLadder
from .along_steps import LINES, itl_along_steps, itl_along_steps_compared
from .colours import AFTER, BEFORE, BOUNDARY, COLOURS, INK, SIDES
from .labels import APART, BEHIND, SMALL, text_points
from .lesson_figure import NAMES, lesson_figure
from .steps import effect, ladder_of_steps, step_anatomies

ROW_INCHES, HEAD_INCHES = 0.3, 1.6  # of a picture of ladders: a rung, and what is around the rungs of a workload
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
    "lesson_figure",
    "race_runs",
    "step_anatomies",
    "throughput_compared",
    "traffic_compared",
]

WHISKERS = "dots: runs; bars and whiskers: their median, with its 95 % interval"


def throughput_compared(ax: Axes, comparison: Comparison, title: str) -> None:
    """Every run as a dot, and each side's median with its 95 % interval; the ratio with its interval in the title.

    The control, `before` a second time, is grey.
    """
    sides = comparison.all_sides
    places = [1.5 * number for number in range(len(sides))]  # with room for a text behind each bar
    for place, side in zip(places, sides, strict=True):
        _runs_and_median(ax, place, side, SIDES[side.name])
    ax.set_xticks(places, [NAMES.get(side.name, side.name) for side in sides])
    claim = comparison.claim(comparison.speedup, "faster", "slower")
    ax.set(title=f"{title}\n{claim}\n{comparison.conditions.device}", ylabel="throughput (tokens/s)")
    ax.set_xlim(-0.5, places[-1] + 1.2)
    ax.set_xlabel("dots: runs, in their order; bar and whiskers: their median with its 95 % interval", color=INK)
    ax.set_ylim(0, 1.12 * max(max(side.throughputs) for side in sides))
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
    """The share of gaps between tokens that are longer than x, before and after: of all requests, the median run's.

    The share is drawn on a logarithmic scale, so that the tail can be seen and p50, p95 and p99 are three heights. A
    few gaps that are much longer than the others lie beyond the axis: its label counts them and gives the longest.
    """
    for side in comparison.sides:
        style, gaps = SIDES[side.name], side.typical_itl_ms
        longer = 1 - np.arange(len(gaps)) / len(gaps)
        ax.step(gaps, longer, where="pre", **LINES[side.name])
        marks = [side.typical("ITL", name) for name in ("p50", "p95", "p99")]
        label = "{}: p50 {:.2f}, p95 {:.2f}, p99 {:.2f} ms".format(side.name, *marks)
        ax.plot(marks, [0.5, 0.05, 0.01], **style, linestyle="none", markersize=8, markeredgecolor="white", label=label)
    for share, name in ((0.5, "p50"), (0.05, "p95"), (0.01, "p99")):
        ax.axhline(share, color="#BBBBBB", linewidth=0.8, zorder=0)
        ax.annotate(name, (1, share), (4, 0), ax.get_yaxis_transform(), "offset points", va="center", color=INK)
    end = 1.05 * max(_tail_ms(side) for side in comparison.sides)
    ax.set(title=f"{title}\n{comparison.conditions.device}", yscale="log", xlim=(0, end), ylim=(5e-4, 1.3))
    below = ["inter-token latency (ms)", *_beyond(comparison.sides, end)]
    ax.set_xlabel("\n".join(below))
    ax.set_ylabel("share of gaps longer than\nthe time below (log scale)")
    ax.set_yticks([1, 0.1, 0.01, 0.001], ["100 %", "10 %", "1 %", "0.1 %"])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=2.4 + 1.4 * len(below), frameon=False)
    ax.spines[["top", "right"]].set_visible(False)


def _tail_ms(side: Samples) -> float:
    """Up to where the gaps are drawn: their 99.9th percentile, or twice p99 where that is less.

    One stalled step gives a long gap to each request of the batch, which may be more than a thousandth of all gaps.
    """
    p99, most = np.percentile(side.itl_ms, [99, 99.9])
    return float(min(most, 2 * p99))


def _beyond(sides: Sequence[Samples], end: float) -> list[str]:
    """A line on the gaps that are longer than `end` ms; none where there are none."""
    counts = {side.name: int(np.sum(side.itl_ms > end)) for side in sides}
    if not any(counts.values()):
        return []
    longest = {side.name: f" (the longest {side.itl_ms.max():,.1f} ms)" if counts[side.name] else "" for side in sides}
    told = ", ".join(f"{name} {count:,}{longest[name]}" for name, count in counts.items())
    return [f"gaps beyond the axis: {told}"]


def traffic_compared(figure: Figure, comparison: TrafficComparison, title: str) -> None:
    """Mixed traffic before and after: above the burst's throughput, below the gaps between tokens under load.

    The function draws on the whole figure; 8.2 x 7.6 inches with `layout="constrained"` suit it.
    """
    figure.suptitle(title)
    top, bottom = figure.subplots(2, 1, height_ratios=[1, 1.1])
    throughput_compared(top, comparison.burst, "All requests at once")
    load = f"At {comparison.rate:.1f} requests/s, {LOAD:.0%} of the capacity before"
    itl_distribution(bottom, comparison.load, load)


def ladder_throughput(ax: Axes, ladder: Ladder, title: str, shares: Sequence[float] | None = None) -> None:
    """Throughput of each lesson from the top: its runs, their median, and its ratio to the first, with 95 % intervals.

    shares: for each rung, floor seconds / seconds of its decode steps, from `measure.floor`; None leaves them out.
    Figures of 8.2 x 3.6 inches suit up to 14 rungs.
    """
    columns = {
        "tokens/s": [f"{rung.throughput.value:,.0f}" for rung in ladder.rungs],
        "ratio to the first": ["", *(times.shown(2) for times in ladder.speedups[1:])],
    }
    if shares is not None:
        columns["times the floor"] = [f"{1 / share:.3g}" for share in shares]
    names = [f"{rung.name} {name}" for rung, name in zip(ladder.rungs, ladder.titles, strict=True)]
    _draw_runs(ax, [rung.throughputs for rung in ladder.rungs], names, columns)
    ax.set(title=f"{title}\n{ladder.conditions.device}")
    floor = "" if shares is None else "\ntimes the floor: the time of a decode step / the floor"
    ax.set_xlabel(f"throughput (tokens/s)\n{WHISKERS}{floor}", fontsize=SMALL)


def drawn_ladders(ladders: Sequence[MeasuredLadder]) -> bytes:
    """A PNG: for each workload the throughput of all rungs."""
    heights = [HEAD_INCHES + ROW_INCHES * len(ladder.rungs) for ladder in ladders]
    drawing = Figure(figsize=(11, sum(heights)), layout="constrained")
    axes = drawing.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    for ax, ladder in zip(axes.flat, ladders, strict=True):
        title = f"Workload {ladder.task.name}: {ladder.conditions.work}"
        ladder_throughput(ax, ladder, title, ladder.shares_of_floor)
    content = io.BytesIO()
    drawing.savefig(content, format="png", dpi=144)
    return content.getvalue()


def race_runs(ax: Axes, ladder: Ladder, metric: str, title: str) -> None:
    """The runs of a race from the top, their medians, and what may be said of each against the first.

    metric: `total time`, which is shown as throughput, or another time, in milliseconds. The ratios are of the
    medians, with intervals from pairs of runs that were made in turns. Figures of 8.2 x 3.8 inches suit it.
    """
    whole = metric == "total time"
    first, *others = zip(ladder.rungs, ladder.titles, ladder.ratios(metric), strict=True)
    rows = [first, *([(ladder.control, SAME, first[2])] if ladder.control.runs else []), *others]
    values = [rung.throughputs if whole else [1e3 * s for s in rung.values(metric)] for rung, _, _ in rows]
    texts = [f"{np.median(runs):,.0f} tokens/s" if whole else f"{np.median(runs):,.2f} ms" for runs in values]
    for row, (_, _, times) in list(enumerate(rows))[-len(others) :]:
        texts[row] += f"\n{times.shown(2)}, {_verdict(times, ladder)}"
    _draw_runs(ax, values, [f"{rung.name}: {name}" for rung, name, _ in rows], {"": texts})
    what = "throughput (tokens/s)" if whole else f"{metric} (ms, less is better)"
    ax.set(title=f"{title}\n{ladder.conditions.device}")
    ax.set_xlabel(f"{what}\n{WHISKERS}\nratios: of the medians, to before, with their 95 % interval", fontsize=SMALL)


def _verdict(times: Ratio, ladder: Ladder) -> str:
    if ladder.conditions.rounds < FEWEST_PAIRS:
        return "too few runs to tell"
    return times.verdict.removesuffix(" here")


def _draw_runs(
    ax: Axes, values: Sequence[Sequence[float]], names: Sequence[str], columns: Mapping[str, Sequence[str]]
) -> None:
    """A row for each list of runs: a bar up to their median with its interval, and a dot for each run.

    columns: texts on the right of the axes, for each heading one for each row.
    """
    middles, places = [median_interval(runs) for runs in values], range(len(values))
    ax.set_yticks(places, names)
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(values) - 0.5, -0.5)
    colours = [SIDES["control"]["color"] if name.startswith("control") else "#56B4E9" for name in names]
    ax.barh(places, [middle.value for middle in middles], 0.62, color=colours, edgecolor="white")
    errors = np.transpose([(m.value - m.low, m.high - m.value) for m in middles])
    below = [place + 0.17 for place in places]
    ax.errorbar([m.value for m in middles], below, xerr=errors, color=INK, linestyle="none", capsize=3, linewidth=1.5)
    for place, runs in enumerate(values):
        ax.plot(
            runs, np.full(len(runs), place - 0.12), color=INK, marker="o", markersize=4, alpha=0.6, linestyle="none"
        )
    ax.set_xlim(0, 1.03 * max(max(*runs, middle.high) for runs, middle in zip(values, middles, strict=True)))
    ax.spines[["top", "right", "left"]].set_visible(False)
    _write_columns(ax, columns)


def _write_columns(ax: Axes, columns: Mapping[str, Sequence[str]]) -> None:
    """A column of texts for each heading, on the right of the axes, each text in its row."""
    style = BEHIND | {"xycoords": ax.get_yaxis_transform()}
    start = 2 * APART
    for heading, texts in columns.items():
        if heading:
            ax.annotate(heading, (1, ax.get_ylim()[1]), (start, 0), **style | {"va": "bottom"}, color=INK)
        for place, text in enumerate(texts):
            if text:
                ax.annotate(text, (1, place), (start, 0), **style)
        start += 1.1 * max(map(text_points, (heading, *texts))) + 2 * APART
