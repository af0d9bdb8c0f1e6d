"""Labels: how wide a text is, and legends that say what colours mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.transforms import offset_copy

SMALL = 9  # points, 12 pixels in a notebook: no text of a picture is smaller
APART = 7.0  # points between neighbouring labels
BELOW = 38  # points from the axes to a legend: there are the numbers and the label of the axis

# Keyword arguments of `annotate`, whose offset is then in points.
BEHIND: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": SMALL, "annotation_clip": False}


def text_points(text: str, size: float = SMALL) -> float:
    """The width of the longest line of a text, in points."""
    font = FontProperties(size=size)
    widths = [TextPath((0, 0), line, size=size, prop=font).get_extents().width for line in text.splitlines() if line]
    return float(max(widths, default=0.0))


def points_wide(ax: Axes) -> float:
    """About how many points the axes are wide. A constrained layout may change that by a fifth."""
    figure = ax.get_figure(root=True)
    assert figure is not None  # axes are made by a figure
    return 72 * ax.get_window_extent().width / figure.dpi


def fits(ax: Axes, text: str, length: float) -> bool:
    """Whether a text fits on a bar of this length along the horizontal axis."""
    start, end = ax.get_xlim()
    return text_points(text) + APART < points_wide(ax) * length / (end - start)


def legend_below(ax: Axes, handles: Iterable[Any], left: float = 0, **more: Any) -> Legend:
    """A legend below the axes, which may have several. left: where it begins, as a share of the width."""
    style: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "title_fontsize": SMALL, "alignment": "left"}
    style |= {"borderaxespad": 0, "handlelength": 2, "columnspacing": 1.2, "loc": "upper left"}
    style |= {"bbox_transform": offset_copy(ax.transAxes, ax.get_figure(root=True), y=-BELOW, units="points")}
    earlier = ax.get_legend()
    legend = ax.legend(handles=list(handles), **style | {"bbox_to_anchor": (left, 0)} | more)
    if earlier is not None:
        ax.add_artist(earlier)
    return legend


def colour_legend(ax: Axes, colours: Mapping[str, str], left: float = 0, **more: Any) -> Legend:
    """Say below the axes what the colours mean."""
    white: dict[str, Any] = {"edgecolor": "#8C8C8C", "linestyle": "--"}
    patches = [Patch(facecolor=c, label=name, **white if c == "#FFFFFF" else {}) for name, c in colours.items()]
    return legend_below(ax, patches, left, **more)
