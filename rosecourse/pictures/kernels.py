"""Kernels: what a step spends on each class of them or at each place of a layer, and which of a layer's become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..errors import ConfigError
from ..measure.kernel_classes import GAPS, Spent
from ..measure.kernel_places import Placed
from .colours import AFTER, BEFORE, INK, text_on
from .labels import SMALL, legend_below
from .stacked import name_rows, write_behind

HEIGHT = 0.8  # of the bars of a row
LETTERS = 10  # that a line in a narrow box has room for, of eleven boxes side by side
SIDES: tuple[dict[str, Any], ...] = (
    {"facecolor": BEFORE["color"], "hatch": "///", "edgecolor": "white"},
    {"facecolor": AFTER["color"], "edgecolor": "none"},
)


def draw_spent(ax: Axes, steps: Mapping[str, Mapping[str, Spent]], title: str) -> None:
    """A bar for each class of kernels and each step, one below the other, with time and number behind it.

    steps: one or two, such as `before` and `after`, to what `spent_by_class` makes of them. Figures of 8.2 x 5 inches
    with `layout="constrained"` suit it. Raises `ConfigError` for another number of steps.
    """

    def bar(name: str, one: Spent) -> tuple[float, str]:
        return one.us, f"{one.us:.1f} µs" if name == GAPS else f"{one.us:.1f} µs, {_counted(one.kernels)}"

    names = list(dict.fromkeys(name for spent in steps.values() for name in spent))
    sides = {step: [bar(name, spent.get(name, Spent(0, 0.0))) for name in names] for step, spent in steps.items()}
    _draw_beside(ax, names, sides)
    ax.set(title=title, xlabel="µs of one decode step")


def draw_places(ax: Axes, steps: Mapping[str, Mapping[str, Placed]], floors: Mapping[str, float], title: str) -> None:
    """A bar for the kernels at each place of a layer in each step, and a line across them: what their bytes would take.

    steps: one or two, such as `before` and `after`, to what `spent_by_place` makes of them. floors: microseconds, by
    place; only these places are drawn. Figures of 9 x 4 inches with `layout="constrained"` suit it. Raises
    `ConfigError` for another number of steps.
    """

    def bar(one: Placed, floor: float) -> tuple[float, str]:
        told = f"{one.us:.1f} µs, {_counted(one.kernels)}, {one.us / floor:.1f} times its bytes"
        return one.us, told if one.kernels else "not seen"

    nothing = Placed(0, 0.0)
    sides = {step: [bar(spent.get(one, nothing), us) for one, us in floors.items()] for step, spent in steps.items()}
    _draw_beside(ax, list(floors), sides, list(floors.values()))
    ax.set(title=title, xlabel="µs in one layer")


def _counted(kernels: float) -> str:
    return f"{kernels:,.0f} kernel{'s' * (kernels != 1)}"


def _draw_beside(
    ax: Axes, names: Sequence[str], sides: Mapping[str, Sequence[tuple[float, str]]], floors: Sequence[float] = ()
) -> None:
    """In each row a bar for every side, with its text behind it; floors: of each row, a line across its bars."""
    if len(sides) not in (1, 2):
        raise ConfigError(f"{len(sides)} steps to draw: give one or two")
    name_rows(ax, names)
    rows, height = np.arange(len(names)), HEIGHT / len(sides)
    for number, ((side, bars), style) in enumerate(zip(sides.items(), SIDES, strict=False)):
        middles = rows + height * (number - (len(sides) - 1) / 2)
        lengths, texts = zip(*bars, strict=True)
        ax.barh(middles, lengths, 0.9 * height, label=side, **style)
        write_behind(ax, np.maximum(lengths, floors or 0).tolist(), middles.tolist(), texts)
    if floors:
        style = {"color": "black", "linewidth": 2.5, "label": "its bytes, as fast as a copy"}
        ax.vlines(floors, rows - HEIGHT / 2, rows + HEIGHT / 2, **style)
    legend_below(ax, ax.get_legend_handles_labels()[0], ncols=3)


def draw_layer(ax: Axes, before: Sequence[str], after: Sequence[tuple[str, float]], title: str) -> None:
    """Two rows of boxes: the kernels of a layer in their order, and below them those that do the same work.

    before: their names; after: names, and how many kernels of `before` each replaces: half of one, too, where two
    kernels share its work. Raises `ConfigError` where that is not all of them.
    """
    if sum(width for _, width in after) != len(before):
        raise ConfigError(f"{len(before)} kernels, and {sum(w for _, w in after)} replaced: give widths of all of them")
    name_rows(ax, [f"before:\n{len(before)} kernels", f"after:\n{len(after)} kernels"])
    for row, boxes in enumerate([[(name, 1.0) for name in before], list(after)]):
        left = 0.0
        for name, width in boxes:
            joined = row == 1 and width > 1
            fill = AFTER["color"] if joined else "#FFFFFF"
            ax.barh(row, width - 0.1, HEIGHT, left=left + 0.05, facecolor=fill, edgecolor=INK)
            told = "\n".join(wrap(name, int(LETTERS * width), break_long_words=False))
            style: dict[str, Any] = {"color": text_on(fill), "fontsize": SMALL}
            ax.text(left + width / 2, row, told, ha="center", va="center", **style)
            left += width
    ax.set(title=title, xlim=(0, len(before)), xticks=[])
    ax.spines["bottom"].set_visible(False)
