"""Where the time of decode steps goes: engines side by side, one lesson's effect, the whole ladder; stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from ..lessons import lesson
from ..measure import kernels as classes
from ..measure.anatomy import PART_NAMES, StepTimes, touched
from ..records.steps import RecordedSteps
from .colours import COLOURS, INK, text_on
from .labels import APART, BEHIND, SMALL, fits, legend_below, points_wide, text_points

# The device's time is a sum over kernels that are spread over the step: an open bar, so that it does not look like a
# part of the host's, which begins at 0 and ends there.
DEVICE: dict[str, Any] = {"facecolor": "white", "edgecolor": INK, "hatch": "////", "linewidth": 0.8}
CHANGED: dict[str, Any] = {"facecolor": "none", "edgecolor": "black", "hatch": "xx", "linewidth": 1.8}
HOST = 0.5  # the height of the host's bar, in rows

# Of the classes of kernels. What is no work of the device is light, so that the work stands out.
CLASS_COLOURS = {
    classes.HEAD: "#0072B2",
    classes.PRODUCTS: "#000000",
    classes.ATTENTION: "#009E73",
    classes.APPEND: COLOURS["kv_append"],
    classes.NORMS: "#CC79A7",
    classes.ELEMENTWISE: "#E69F00",
    classes.REST: "#9A86C8",
    classes.COPIES: "#56B4E9",
    classes.GAPS: "#DDDDDD",
}

Bars = Mapping[str, Mapping[str, float]]  # bar -> part -> length


def step_anatomies(ax: Axes, times: StepTimes, title: str) -> None:
    """A bar for each engine, from the top: the parts of a decode step, their sum, and a legend with all times.

    Figures of 8.2 x 2 inches suit one engine, 8.2 x 3 inches two, with `layout="constrained"`.
    """
    bars = {name: times.milliseconds(name) for name in times.turns}
    _draw(ax, bars, [f"{times.step_ms(name):.2f} ms" for name in bars], _with_times(bars))
    ax.set_title(title)
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def step_shares(ax: Axes, times: StepTimes, title: str) -> None:
    """A bar for each engine, from the top: the shares of the parts of its step in %, and the step's time behind it.

    Figures of 8.2 x 3 inches suit two engines, with `layout="constrained"`.
    """
    bars = {name: {part: 100 * times.share(name, part) for part in times.milliseconds(name)} for name in times.turns}
    names = {part: PART_NAMES[part] for part in times.parts}
    _draw(ax, bars, [f"{times.step_ms(name):.2f} ms" for name in bars], names, digits=0)
    ax.set(title=title, xlabel="% of the step (mean of the turns)")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=4)


def effect(ax: Axes, steps: RecordedSteps, before: str, after: str, title: str) -> None:
    """What the lesson `after` took away from the rung `before` it: both steps on one scale.

    The stages whose times it changed are outlined and hatched. Figures of 8.2 x 3.2 inches suit it.
    """
    changed = touched(steps.times.turns[before], steps.times.turns[after], lesson(after).changes)
    bars = {name: steps.times.milliseconds(rung) for name, rung in (("before", before), ("after", after))}
    _draw_rungs(ax, steps, [before, after], bars, _with_times(bars))
    for row, parts in enumerate(bars.values()):
        for number, part in enumerate(parts):
            if part in changed:
                ax.barh(row, parts[part], HOST, left=sum([*parts.values()][:number]), **CHANGED)
    ax.set(title=f"{title}\n{_conditions(steps)}", xlabel="ms a step (mean of the turns); crosshatched: what changes")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def draw_stacked(ax: Axes, bars: Bars, colours: Mapping[str, str], title: str, unit: str = "µs") -> None:
    """A bar for each name, the first on top, of parts one behind the other, with its sum behind it.

    bars: lengths in the unit, such as a column of `measure.kernels.spent_by_class`. colours: of all parts, in their
    order, such as `CLASS_COLOURS`. Figures in which a bar has 0.35 inches suit it.
    """
    totals = [sum(dict(parts).values()) for parts in bars.values()]
    _draw_parts(ax, bars, colours, [f"{one:,.0f} {unit}" if one >= 100 else f"{one:,.3g} {unit}" for one in totals])
    ax.set(title=title, xlabel=f"{unit} of one decode step")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """A row for each name, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _draw_parts(
    ax: Axes, bars: Bars, colours: Mapping[str, str], ends: Sequence[str], height: float = 0.72
) -> list[BarContainer]:
    """Stacked bars, each with one of the texts `ends` behind it, on a scale on which all fit; returned by part."""
    table = pd.DataFrame(bars).T.reindex(index=list(bars), columns=list(colours))
    table = table.dropna(axis="columns", how="all")
    lefts = table.fillna(0).cumsum(axis=1).shift(axis=1, fill_value=0)
    rows = pd.Series(range(len(table)), table.index)
    drawn = []
    for part in table:
        there = table[part].dropna()
        style = {"left": lefts.loc[there.index, part], "color": colours[part], "label": part}
        drawn.append(ax.barh(rows[there.index], there, height, **style))
    name_rows(ax, list(bars))
    shares = [min(0.8, (1.1 * text_points(text) + 2 * APART) / points_wide(ax)) for text in ends]
    totals = table.sum(axis=1).tolist()
    ax.set_xlim(0, max(total / (1 - share) for total, share in zip(totals, shares, strict=True)))
    for row, (total, text) in enumerate(zip(totals, ends, strict=True)):
        ax.annotate(text, (total, row), (5, 0), color=INK, **BEHIND)
    return drawn


def _with_times(bars: Bars) -> dict[str, str]:
    """The parts' names for a legend, each with its time in every bar."""
    parts = [part for part in PART_NAMES if any(part in bar for bar in bars.values())]
    times = {part: [f"{bar[part]:.2f}" if part in bar else "–" for bar in bars.values()] for part in parts}
    return {part: f"{PART_NAMES[part]}: {' → '.join(told)} ms" for part, told in times.items()}


def _draw(ax: Axes, bars: Bars, ends: Sequence[str], names: Mapping[str, str], digits: int = 2) -> None:
    """The bars, with the length of a part on it where there is room. names: of the parts, for a legend."""
    there = [part for part in names if any(part in bar for bar in bars.values())]
    named = {name: {names[part]: ms for part, ms in parts.items()} for name, parts in bars.items()}
    colours = {names[part]: COLOURS[part] for part in there}
    for part, drawn in zip(there, _draw_parts(ax, named, colours, ends, HOST), strict=True):
        fitting = [text if fits(ax, text := f"{one.get_width():.{digits}f}", one.get_width()) else "" for one in drawn]
        box = {"facecolor": COLOURS[part], "edgecolor": "none", "pad": 1}
        ink = text_on(COLOURS[part])
        ax.bar_label(drawn, fitting, label_type="center", fontsize=SMALL, color=ink, bbox=box, zorder=3)
    ax.set_xlabel("ms a step (mean of the turns)")


def _draw_rungs(ax: Axes, steps: RecordedSteps, rungs: Sequence[str], bars: Bars, names: Mapping[str, str]) -> None:
    """The bars of these rungs, with the device's time below each of them, and the line of the floor."""
    busy = [steps.busy_ms[rung] for rung in rungs]
    device = [f"device {ms:.2f} ms, {steps.kernels[rung]:,} kernels" for rung, ms in zip(rungs, busy, strict=True)]
    totals = [f"{steps.times.step_ms(rung):.2f} ms" for rung in rungs]
    _draw(ax, bars, [f"{total}\n{told}" for total, told in zip(totals, device, strict=True)], names)
    below = [row + 0.37 for row in range(len(rungs))]
    ax.barh(below, busy, 0.16, label="device busy (kernels and copies)", **DEVICE)
    floor = f"floor {steps.floor_ms:.2f} ms: weights, K and V read once"
    ax.axvline(steps.floor_ms, color="black", linewidth=1.4, linestyle="--", label=floor)


def _conditions(steps: RecordedSteps) -> str:
    return f"{steps.batch} requests with a mean of {steps.context} tokens each, {steps.device}"
