"""Stacked bars: what several steps are made of, one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.container import BarContainer

from ..measure import kernel_classes as classes
from .colours import COLOURS, INK
from .labels import APART, BEHIND, SMALL, legend_below, points_wide, text_points

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


def draw_stacked(
    ax: Axes,
    bars: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    title: str,
    unit: str,
    floor: float | None = None,
    legend: bool = True,
) -> None:
    """A bar for each name, the first on top, of parts one behind the other, with its sum behind it.

    bars: name to part to length, in the unit. colours: of all parts, in their order. floor: a length to mark. legend:
    whether it says below the bars what the colours are. Figures in which a bar has 0.35 inches suit it.
    """
    totals = [sum(parts.values()) for parts in bars.values()]
    draw_parts(ax, bars, colours, [f"{one:,.0f} {unit}" if one >= 100 else f"{one:,.3g} {unit}" for one in totals])
    ax.set(title=title, xlabel=f"{unit} of one decode step")
    if floor is not None:
        ax.axvline(floor, color=INK, linestyle="--", linewidth=1.0, label="what the bytes need")
    if legend:
        legend_below(ax, ax.get_legend_handles_labels()[0], ncols=2)


def draw_parts(
    ax: Axes,
    bars: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    ends: Sequence[str],
    height: float = 0.72,
) -> list[BarContainer]:
    """The bars of `draw_stacked`, each with one of the texts `ends` behind it; returned by part, as they are drawn.

    height: of a bar, in rows.
    """
    lefts, drawn = dict.fromkeys(bars, 0.0), []
    for part, colour in colours.items():
        widths = {name: parts[part] for name, parts in bars.items() if part in parts}
        if widths:
            rows = [list(bars).index(name) for name in widths]
            begins = [lefts[name] for name in widths]
            drawn.append(ax.barh(rows, list(widths.values()), height, left=begins, color=colour, label=part))
        lefts |= {name: lefts[name] + width for name, width in widths.items()}
    name_rows(ax, list(bars))
    write_behind(ax, list(lefts.values()), range(len(bars)), ends)
    return drawn


def name_rows(ax: Axes, names: Sequence[str]) -> None:
    """A row for each name, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)


def write_behind(ax: Axes, lengths: Sequence[float], rows: Sequence[float], texts: Sequence[str]) -> None:
    """A text behind the end of each bar, and a scale on which all of them fit."""
    shares = [min(0.8, (1.1 * text_points(text) + 2 * APART) / points_wide(ax)) for text in texts]
    ends = [length / (1 - share) for length, share in zip(lengths, shares, strict=True)]
    ax.set_xlim(0, max(*ends, ax.get_xlim()[1] if ax.texts else 0))
    for length, row, text in zip(lengths, rows, texts, strict=True):
        ax.annotate(text, (length, row), (5, 0), color=INK, **BEHIND)
