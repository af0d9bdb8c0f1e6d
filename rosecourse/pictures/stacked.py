"""Stacked bars: what several steps are made of, one below the other."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from ..measure import kernel_classes as classes
from .colours import COLOURS, INK
from .labels import BEHIND, SMALL

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
    lefts = dict.fromkeys(bars, 0.0)
    for part, colour in colours.items():
        widths = {name: parts[part] for name, parts in bars.items() if part in parts}
        if widths:
            tops = [list(bars).index(name) for name in widths]
            ax.barh(tops, list(widths.values()), 0.72, left=[lefts[n] for n in widths], color=colour, label=part)
        lefts |= {name: lefts[name] + width for name, width in widths.items()}
    for row, total in enumerate(lefts.values()):
        text = f"{total:,.0f} {unit}" if total >= 100 else f"{total:,.3g} {unit}"
        ax.annotate(text, (total, row), (5, 0), color=INK, **BEHIND)
    if floor is not None:
        ax.axvline(floor, color=INK, linestyle="--", linewidth=1.0, label="what the bytes need")
    ax.set_yticks(range(len(bars)), list(bars))
    ax.set(title=title, xlabel=f"{unit} of one decode step", ylim=(len(bars) - 0.4, -0.6))
    ax.set_xlim(0, 1.15 * max(lefts.values()))
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    if legend:
        ax.legend(loc="upper center", bbox_to_anchor=(0.45, -0.25), ncols=3, frameon=False, fontsize=SMALL)
