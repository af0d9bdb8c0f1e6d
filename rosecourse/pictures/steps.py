"""Where the time of decode steps goes, in stacked bars: parts of the host's, or classes of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from ..measure import kernels as classes
from ..measure.anatomy import PART_NAMES, StepTimes
from .colours import COLOURS, INK, text_on
from .labels import APART, BEHIND, SMALL, fits, legend_below, points_wide, text_points

HOST = 0.5  # the height of a bar of the host's parts, in rows

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


def step_shares(ax: Axes, times: StepTimes, title: str) -> None:
    """A bar for each engine, from the top: the shares of the parts of its step in %, and the step's time behind it.

    Figures of 8.2 x 3 inches suit two engines, with `layout="constrained"`.
    """
    bars = {name: {part: 100 * times.share(name, part) for part in times.milliseconds(name)} for name in times.turns}
    names = {part: PART_NAMES[part] for part in times.parts}
    _draw(ax, bars, [f"{times.step_ms(name):.2f} ms" for name in bars], names)
    ax.set(title=title, xlabel="% of the step (mean of the turns)")
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=4)


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


def _draw(ax: Axes, bars: Bars, ends: Sequence[str], names: Mapping[str, str]) -> None:
    """The bars, with the length of a part on it where there is room. names: of the parts, for a legend."""
    there = [part for part in names if any(part in bar for bar in bars.values())]
    named = {name: {names[part]: ms for part, ms in parts.items()} for name, parts in bars.items()}
    colours = {names[part]: COLOURS[part] for part in there}
    for part, drawn in zip(there, _draw_parts(ax, named, colours, ends, HOST), strict=True):
        fitting = [text if fits(ax, text := f"{one.get_width():.0f}", one.get_width()) else "" for one in drawn]
        box = {"facecolor": COLOURS[part], "edgecolor": "none", "pad": 1}
        ink = text_on(COLOURS[part])
        ax.bar_label(drawn, fitting, label_type="center", fontsize=SMALL, color=ink, bbox=box, zorder=3)
