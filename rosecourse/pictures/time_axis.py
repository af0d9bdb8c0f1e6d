"""Lanes over a time axis: bars from one time to another, for sides that stand one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from .colours import INK, text_on
from .labels import SMALL, fits

LINE, HEIGHT, BETWEEN = 0.62, 0.84, 0.3  # in lanes: a line of a heading, a bar, and what lies between two sides
WAITS = "#FFFFFF"  # the colour of a bar in which nothing is done: it gets a dashed edge


class Bar(NamedTuple):
    """What begins at a time and takes so long. text: is written on the bar where it fits."""

    start: float
    length: float
    colour: str
    text: str = ""


Lanes = Mapping[str, Sequence[Bar]]


def height_of(sides: Mapping[str, Lanes]) -> float:
    """How many lanes high the picture is, with its headings."""
    return sum(LINE * len(heading.splitlines()) + len(lanes) + BETWEEN for heading, lanes in sides.items())


def draw_lanes(ax: Axes, sides: Mapping[str, Lanes], title: str, xlabel: str) -> dict[tuple[str, str], float]:
    """For each side its heading, and below it a lane of bars for each name; all on one scale.

    Returns where the lane of a side and a name is on the vertical axis. Later bars lie upon earlier ones.
    """
    end = max(bar.start + bar.length for lanes in sides.values() for bars in lanes.values() for bar in bars)
    ax.set(title=title, xlabel=xlabel, xlim=(0, 1.01 * end), ylim=(height_of(sides) - BETWEEN, 0))
    top, places = 0.0, {}
    for heading, lanes in sides.items():
        top += LINE * len(heading.splitlines())
        ax.text(0, top - 0.05, heading, va="bottom", color=INK, fontsize=SMALL)
        for name, bars in lanes.items():
            places[heading, name] = top + 0.5
            _draw_lane(ax, top + 0.5, bars)
            top += 1
        top += BETWEEN
    ax.set_yticks(list(places.values()), [name for _, name in places])
    ax.tick_params(axis="both", labelsize=SMALL)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return places


def _draw_lane(ax: Axes, middle: float, bars: Sequence[Bar]) -> None:
    """Bars and their texts. A bar with a text has an edge, which keeps it apart from its neighbours."""
    for colour in dict.fromkeys(bar.colour for bar in bars):
        mine = [bar for bar in bars if bar.colour == colour]
        edge: dict[str, Any] = (
            {"edgecolor": "#8C8C8C", "linestyle": "--"} if colour == WAITS else {"edgecolor": "white"}
        )
        widths = [0.8 if bar.text or colour == WAITS else 0 for bar in mine]
        spans, place = [(bar.start, bar.length) for bar in mine], (middle - HEIGHT / 2, HEIGHT)
        ax.broken_barh(spans, place, facecolor=colour, linewidths=widths, snap=False, **edge)
    for bar in bars:
        if bar.text and fits(ax, bar.text, bar.length):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL}
            ax.text(bar.start + bar.length / 2, middle, bar.text, color=text_on(bar.colour), **style)
