"""Labels in place: how wide a text is, and where texts go so that they do not lie upon each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from .colours import INK

SMALL = 9  # points, 12 pixels in a notebook: no text of a picture is smaller
APART = 7.0  # points between neighbouring labels

# Keyword arguments of `annotate`, whose offset is then in points, and of its arrow.
BEHIND: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": SMALL, "annotation_clip": False}
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.8, "color": INK, "shrinkA": 0, "shrinkB": 0}


def text_points(text: str, size: float = SMALL) -> float:
    """The width of the longest line of a text, in points."""
    font = FontProperties(size=size)
    widths = [TextPath((0, 0), line, size=size, prop=font).get_extents().width for line in text.splitlines() if line]
    return float(max(widths, default=0.0))


def axes_points(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes in points, once the figure has been laid out."""
    figure = ax.get_figure(root=True)
    assert figure is not None  # axes are made by a figure
    figure.draw_without_rendering()
    box = ax.get_window_extent()
    return 72 * box.width / figure.dpi, 72 * box.height / figure.dpi


def points_of_a_unit(ax: Axes) -> float:
    """How wide a unit of the axis along the bottom is, in points, once the figure has been laid out."""
    start, end = ax.get_xlim()
    return axes_points(ax)[0] / (end - start)


def spread(centres: Sequence[float], widths: Sequence[float], room: float) -> list[float] | None:
    """New centres, in the same order, so that texts of these widths stand side by side between 0 and `room`.

    Each text moves as little as its neighbours allow. None where they do not fit.
    """
    if sum(widths) + APART * (len(widths) - 1) > room:
        return None
    lefts: list[float] = []
    free = 0.0
    for centre, width in zip(centres, widths, strict=True):
        lefts.append(max(free, centre - width / 2))
        free = lefts[-1] + width + APART
    limit = room
    for number in reversed(range(len(lefts))):
        lefts[number] = min(lefts[number], limit - widths[number])
        limit = lefts[number] - APART
    return [left + width / 2 for left, width in zip(lefts, widths, strict=True)]
