"""Kernels: what a step spends on each class of them or at each place of a layer, and which of a layer's become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.axes import Axes

from ..errors import ConfigError
from ..measure.kernel_classes import GAPS, Spent
from ..measure.kernel_places import Placed
from .colours import AFTER, BEFORE, INK
from .labels import BEHIND, SMALL

BAR, APART = 0.36, 0.28  # heights: of a bar, and between two classes
ROW, ROOM = 1.0, 0.7  # heights: of a row of boxes, and of what lies between two rows
LETTERS = 10  # that a line in a narrow box has room for, of eleven boxes side by side
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # a text that lines may cross
SIDES: tuple[dict[str, Any], ...] = (
    {"facecolor": BEFORE["color"], "hatch": "///", "edgecolor": "white"},
    {"facecolor": AFTER["color"], "edgecolor": "none"},
)


def draw_spent(ax: Axes, steps: Mapping[str, Mapping[str, Spent]], title: str) -> None:
    """A bar for each class of kernels and each step, one below the other, with time and number behind it.

    steps: one or two, such as `before` and `after`, to what `spent_by_class` makes of them. Figures of 8.2 x 5 inches
    with `layout="constrained"` suit it. Raises `ConfigError` for another number of steps.
    """
    if len(steps) not in (1, 2):
        raise ConfigError(f"{len(steps)} steps to draw: give one or two")
    names = list(dict.fromkeys(name for spent in steps.values() for name in spent))
    row, longest = len(steps) * BAR + APART, max(one.us for spent in steps.values() for one in spent.values())
    for (step, spent), style in zip(steps.items(), SIDES, strict=False):
        offset = list(steps).index(step) * BAR
        tops = {name: number * row + offset + BAR / 2 for number, name in enumerate(names)}
        ax.barh([tops[name] for name in spent], [one.us for one in spent.values()], BAR * 0.9, label=step, **style)
        for name in names:
            one = spent.get(name, Spent(0, 0.0))
            kernels = "" if name == GAPS else f", {one.kernels:,} kernel{'s' * (one.kernels != 1)}"
            ax.annotate(f"{one.us:.1f} µs{kernels}", (one.us, tops[name]), (5, 0), color=INK, **BEHIND)
    ax.set_yticks([number * row + len(steps) * BAR / 2 for number in range(len(names))], names)
    ax.set(title=title, xlabel="µs of one decode step", xlim=(0, 1.35 * longest), ylim=(len(names) * row, -APART))
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False, fontsize=SMALL)


def draw_places(ax: Axes, steps: Mapping[str, Mapping[str, Placed]], floors: Mapping[str, float], title: str) -> None:
    """A bar for the kernels at each place of a layer in each step, and a line across them: what their bytes would take.

    steps: one or two, such as `before` and `after`, to what `spent_by_place` makes of them. floors: microseconds, by
    place; only these places are drawn. Figures of 9 x 4 inches with `layout="constrained"` suit it. Raises
    `ConfigError` for another number of steps.
    """
    if len(steps) not in (1, 2):
        raise ConfigError(f"{len(steps)} steps to draw: give one or two")
    row = len(steps) * BAR + APART
    for number, ((step, spent), style) in enumerate(zip(steps.items(), SIDES, strict=False)):
        tops = [place * row + number * BAR + BAR / 2 for place in range(len(floors))]
        found = [spent.get(place, Placed(0, 0.0)) for place in floors]
        ax.barh(tops, [one.us for one in found], BAR * 0.9, label=step, **style)
        for top, one, floor in zip(tops, found, floors.values(), strict=True):
            kernels = f"{one.kernels:.0f} kernel{'s' * (one.kernels != 1)}"
            told = f"{one.us:.1f} µs, {kernels}, {one.us / floor:.1f} times its bytes" if one.kernels else "not seen"
            ax.annotate(told, (max(one.us, floor), top), (6, 0), color=INK, **BEHIND)
    for place, floor in enumerate(floors.values()):
        top = place * row
        ax.vlines(floor, top - 0.06, top + len(steps) * BAR + 0.02, color="black", linewidth=2.5)
    ax.vlines([], [], [], color="black", linewidth=2.5, label="its bytes, as fast as a copy")
    longest = max(one.us for spent in steps.values() for place, one in spent.items() if place in floors)
    ax.set_yticks([place * row + len(steps) * BAR / 2 for place in range(len(floors))], list(floors))
    ax.set(title=title, xlabel="µs in one layer", xlim=(0, 1.6 * longest), ylim=(len(floors) * row, -APART))
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.legend(loc="lower right", frameon=False, fontsize=SMALL)


def draw_layer(ax: Axes, before: Sequence[str], after: Sequence[tuple[str, float]], title: str) -> None:
    """Two rows of boxes: the kernels of a layer in their order, and below them those that do the same work.

    before: their names; after: names, and how many kernels of `before` each replaces: half of one, too, where two
    kernels share its work. Raises `ConfigError` where that is not all of them.
    """
    if sum(width for _, width in after) != len(before):
        raise ConfigError(f"{len(before)} kernels, and {sum(w for _, w in after)} replaced: give widths of all of them")
    rows: list[list[tuple[str, float]]] = [[(name, 1) for name in before], list(after)]
    for number, (boxes, style) in enumerate(zip(rows, SIDES, strict=True)):
        top, left = number * (ROW + ROOM) + ROOM, 0.0
        heading = f"{('before', 'after')[number]}: {len(boxes)} kernels"
        ax.text(0.15, top - 0.14, heading, color=INK, va="bottom", bbox=ON_WHITE, zorder=3)
        for name, width in boxes:
            joined = number == 1 and width > 1
            frame: dict[str, Any] = {"edgecolor": INK, "linewidth": 2.0 if joined else 1.0}
            frame["facecolor"] = style["facecolor"] if joined else "white"
            ax.barh([top + ROW / 2], [width - 0.1], ROW, left=left + 0.05, **frame)
            ink = "white" if joined else "black"
            told = "\n".join(wrap(name, int(LETTERS * width), break_long_words=False))
            ax.text(left + width / 2, top + ROW / 2, told, ha="center", va="center", color=ink, fontsize=SMALL)
            if joined:
                for edge in (left + 0.05, left + width - 0.05):
                    ax.plot([edge, edge], [top - ROOM, top], color=INK, linewidth=0.8, linestyle=":")
            left += width
    ax.set(title=title, xlim=(-0.05, len(before) + 0.05), ylim=(2 * (ROW + ROOM) + 0.1, 0))
    ax.set_axis_off()
    ax.title.set_visible(True)
