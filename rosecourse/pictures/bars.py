"""Bars of decode steps: stacked parts with their names in place, and the device's busy time on a track of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from ..measure.anatomy import PART_NAMES
from .colours import COLOURS, INK
from .labels import APART, BEHIND, LEADER, SMALL, axes_points, spread, text_points

LINE = 1.25 * SMALL  # points that a line of text takes
LEAST_MS = 0.005  # of a part that has a label: less is shown as 0.00
UNDER = -0.15  # where a leader begins, in heights of its text: at the lower edge of the box
NEAR_THE_LEFT = 0.25  # of the axes: labels keep to the right of a floor that is drawn there
# The device's time is a sum over kernels that are spread over the step: an open bar, so that it does not look like a
# part of the host's, which begins at 0 and ends there.
DEVICE: dict[str, Any] = {"facecolor": "white", "edgecolor": INK, "hatch": "////", "linewidth": 0.8}
DEVICE_NAME = "device busy, in all"
CHANGED: dict[str, Any] = {"edgecolor": "black", "hatch": "xx", "linewidth": 1.8}


@dataclass(frozen=True)
class Bar:
    """One decode step. parts: milliseconds of the host by part; busy_ms, kernels: of the device, where it is known.

    changed: the parts to outline and hatch. labelled: whether the parts are named, else there is only the total.
    """

    name: str
    parts: Mapping[str, float]
    busy_ms: float | None = None
    kernels: int = 0
    changed: Collection[str] = ()
    labelled: bool = True

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def height(self) -> float:
        """What the row takes, in inches, where the figure is made to measure."""
        if not self.labelled:
            return 0.32
        return 0.54 + (0.24 if self.busy_ms is not None else 0)

    @property
    def busy_text(self) -> str:
        return f"{DEVICE_NAME}: {self.busy_ms:.2f} ms in {self.kernels:,} kernels and copies"


@dataclass(frozen=True)
class Row:
    """Where a bar goes: from `top` down, in the heights of `Bar`."""

    bar: Bar
    top: float

    @property
    def host(self) -> tuple[float, float]:
        """Top and height of the stacked bar; above it is room for labels."""
        return (self.top + 0.2, 0.28) if self.bar.labelled else (self.top, 0.15)

    @property
    def device(self) -> tuple[float, float]:
        """Top and height of the device's bar, under the host's."""
        top, height = self.host
        return (top + height + 0.09, 0.11) if self.bar.labelled else (top + height + 0.03, 0.07)


def draw_bars(ax: Axes, bars: Sequence[Bar], floor_ms: float | None = None) -> None:
    """The bars from the top, on one scale, with a vertical line at `floor_ms`; above them a legend, then the title."""
    rows, bottom = [], 0.0 if floor_ms is None else 0.22
    for bar in bars:
        rows.append(Row(bar, bottom))
        bottom += bar.height
    ax.set_yticks([row.host[0] + row.host[1] / 2 for row in rows], [bar.name for bar in bars])
    ax.set(xlabel="ms a step (mean of the turns)", ylim=(bottom, 0))
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    longest = max(bar.total for bar in bars)
    ax.set_xlim(0, longest)
    _name_colours(ax, bars)
    width, height = axes_points(ax)
    ax.set_xlim(0, _limit(bars, width, floor_ms))
    scale = (width / ax.get_xlim()[1], height / bottom)
    for row in rows:
        _draw_row(ax, row, scale, floor_ms)
    if floor_ms is not None:
        _draw_floor(ax, floor_ms, bottom)


def _name_colours(ax: Axes, bars: Sequence[Bar]) -> None:
    """The legend, between the title and the bars, in as many columns as fit."""
    named = {PART_NAMES[part]: Patch(color=COLOURS[part]) for bar in bars for part in bar.parts}
    if any(bar.busy_ms is not None for bar in bars):
        named[DEVICE_NAME] = Patch(**DEVICE)
    swatches = 4.5 * SMALL  # the swatch of a name, and what lies between two names
    fitting = int(axes_points(ax)[0] // (max(map(text_points, named)) + swatches))
    all_fit = sum(text_points(name) + swatches for name in named) <= axes_points(ax)[0]
    columns = len(named) if all_fit else max(1, fitting)
    above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": columns, "borderaxespad": 0.1}
    above |= {"columnspacing": 1.2, "handlelength": 1.4, "handletextpad": 0.5, "labelspacing": 0.3}
    ax.legend(named.values(), named.keys(), **above, frameon=False, fontsize=SMALL)
    ax.set_title(ax.get_title(), pad=10 + 1.3 * LINE * ceil(len(named) / columns))


def _limit(bars: Sequence[Bar], width: float, floor_ms: float | None) -> float:
    """Where the axis ends, so that every bar and the text behind it fit into `width` points."""
    ends = [(bar.total, f"{bar.total:.2f} ms") for bar in bars]
    ends += [(bar.busy_ms, bar.busy_text) for bar in bars if bar.busy_ms is not None and bar.labelled]
    if floor_ms is not None:
        ends.append((floor_ms, floor_text(floor_ms)))
    return max(value / max(0.2, 1 - (text_points(text) * 1.15 + 2 * APART) / width) for value, text in ends)


def floor_text(floor_ms: float) -> str:
    """What stands beside the line of the floor."""
    return f"floor {floor_ms:.2f} ms: weights, K and V read once"


def _draw_row(ax: Axes, row: Row, scale: tuple[float, float], floor_ms: float | None) -> None:
    """One bar with its texts. scale: points of a unit of x and of y."""
    bar, (top, height), left = row.bar, row.host, 0.0
    for part, width in bar.parts.items():
        place: dict[str, Any] = {"height": height, "left": left, "color": COLOURS[part]}
        ax.barh([top + height / 2], [width], edgecolor="white", linewidth=0.8, **place)
        if part in bar.changed:
            ax.barh([top + height / 2], [width], height, left=left, facecolor="none", **CHANGED)
        left += width
    ax.annotate(f"{left:.2f} ms", (left, top + height / 2), (5, 0), weight="bold", **BEHIND)
    if bar.busy_ms is not None:
        top, height = row.device
        ax.barh([top + height / 2], [bar.busy_ms], height, **DEVICE)
        text = bar.busy_text if bar.labelled else ""
        ax.annotate(text, (bar.busy_ms, top + height / 2), (5, 0), color=INK, **BEHIND)
    if bar.labelled:
        _label_parts(ax, row, scale, floor_ms)


def _on(part: str, text: str, hatched: bool) -> dict[str, Any]:
    """A text in its segment; where that is hatched, in a box of the part's colour, which keeps within the bar."""
    style = {"color": "white" if part == "block_tables" else "black", "fontsize": SMALL}
    box = {"facecolor": COLOURS[part], "edgecolor": "none", "pad": 0 if "\n" in text else 2}
    return style | {"bbox": box} if hatched else style


def _beside(part: str) -> dict[str, Any]:
    """A text outside its segment: white with an edge in the part's colour, so that it is not taken for a bar."""
    box = {"facecolor": "white", "edgecolor": COLOURS[part], "linewidth": 1.6, "pad": 1.5}
    return {"color": "black", "bbox": box, "fontsize": SMALL}


def _label_parts(ax: Axes, row: Row, scale: tuple[float, float], floor_ms: float | None) -> None:
    """Each part's name and time in its segment, or above the bar with a leader where the segment is too narrow.

    A part whose time is rounded to 0.00 ms has no label: the legend names it, and the bar has no room to spare.
    """
    (top, height), left = row.host, 0.0
    narrow: list[tuple[float, str, str]] = []
    for part, width in row.bar.parts.items():
        start, end = _free(left, left + width, floor_ms)
        room, text = (end - start) * scale[0], f"{PART_NAMES[part]} {width:.2f} ms"
        short = f"{PART_NAMES[part]}\n{width:.2f} ms"
        fitting = [text] if text_points(text) + APART < room else []
        hatching = 2.0 if part in row.bar.changed else 1.0  # two lines are as high as the bar, and hide its hatching
        if hatching * text_points(short) + APART < room and height * scale[1] > 2 * LINE:
            fitting.append(short)
        if fitting:
            style: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.1}
            style |= _on(part, fitting[0], part in row.bar.changed)
            ax.text((start + end) / 2, top + height / 2, fitting[0], **style)
        elif width >= LEAST_MS:
            narrow.append((left + width / 2, part, text))
        left += width
    _label_narrow(ax, top, narrow, scale, floor_ms)


def _free(left: float, right: float, floor_ms: float | None) -> tuple[float, float]:
    """The piece of a segment in which a text may stand: the wider one where the line of the floor cuts it in two."""
    if floor_ms is None or not left < floor_ms < right:
        return left, right
    return (left, floor_ms) if floor_ms - left > right - floor_ms else (floor_ms, right)


def _label_narrow(
    ax: Axes,
    top: float,
    labels: Sequence[tuple[float, str, str]],
    scale: tuple[float, float],
    floor_ms: float | None,
) -> None:
    """Labels of narrow segments, above the bar whose upper edge is `top`; none where they do not fit side by side.

    labels: middle, part and text of each. A floor near the left edge has all of them on its right.
    """
    limit = ax.get_xlim()[1]
    first = APART + (floor_ms * scale[0] if floor_ms is not None and floor_ms < NEAR_THE_LEFT * limit else 0.0)
    widths = [text_points(text) * 1.03 + 3 for *_, text in labels]
    places = spread([middle * scale[0] - first for middle, _, _ in labels], widths, limit * scale[0] - first)
    placed = list(zip(labels, places or [], widths, strict=bool(places)))
    placed.sort(key=lambda one: -abs(one[0][0] * scale[0] - first - one[1]))  # a box hides longer leaders behind it
    for (middle, part, text), place, width in placed:
        centre = first + place
        nearest = min(1.0, max(0.0, 0.5 + (middle * scale[0] - centre) / width))  # of the label's lower edge
        style: dict[str, Any] = {"ha": "center", "va": "bottom", "annotation_clip": False}
        style["arrowprops"] = LEADER | {"relpos": (nearest, UNDER)}
        ax.annotate(text, (middle, top), (centre / scale[0], top - 5 / scale[1]), **style, **_beside(part))


def _draw_floor(ax: Axes, floor_ms: float, bottom: float) -> None:
    """The line of the floor, its text above the first bar."""
    around = [withStroke(linewidth=3, foreground="white")]
    ax.plot([floor_ms, floor_ms], [0, bottom], color="black", linewidth=1.4, linestyle="--", path_effects=around)
    ax.annotate(floor_text(floor_ms), (floor_ms, 0.09), (5, 0), color="black", **BEHIND)
