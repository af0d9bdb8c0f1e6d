"""Lanes over a time axis: bars from one time to another, for sides that stand one below the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes

from ..measure.lanes import PLAN, READ, RUN, WAIT
from .colours import INK, text_on
from .drawing import new_axes
from .labels import SMALL, colour_legend, fits

LINE, HEIGHT, BETWEEN = 0.62, 0.84, 0.3  # in lanes: a line of a heading, a bar, and what lies between two sides
WAITS = "#FFFFFF"  # the colour of a bar in which nothing is done: it gets a dashed edge
# What spans do -> their colour, and what the legend says. Light enough for black text; neighbours differ in brightness.
SPANS = {
    PLAN: ("#7FCDB4", "plan and launch a step"),
    READ: ("#E3CFEA", "read its tokens, and hand them out"),
    RUN: ("#E69F00", "run"),
    WAIT: (WAITS, "wait"),
}


class Bar(NamedTuple):
    """What begins at a time and takes so long. text: is written on the bar where it fits."""

    start: float
    length: float
    colour: str
    text: str = ""


Lanes = Mapping[str, Sequence[Bar]]


def draw_lanes(ax: Axes, sides: Mapping[str, Lanes], title: str, xlabel: str) -> dict[tuple[str, str], float]:
    """For each side its heading, and below it a lane of bars for each name; all on one scale.

    Returns where the lane of a side and a name is on the vertical axis. Later bars lie upon earlier ones.
    """
    end = max(bar.start + bar.length for lanes in sides.values() for bars in lanes.values() for bar in bars)
    ax.set(title=title, xlabel=xlabel, xlim=(0, 1.01 * end), ylim=(_height_of(sides) - BETWEEN, 0))
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


def _height_of(sides: Mapping[str, Lanes]) -> float:
    """How many lanes high the picture is, with its headings."""
    return sum(LINE * len(heading.splitlines()) + len(lanes) + BETWEEN for heading, lanes in sides.items())


def _draw_lane(ax: Axes, middle: float, bars: Sequence[Bar]) -> None:
    """Bars and their texts. A bar with a text has an edge, which keeps it apart from its neighbours."""
    for colour in dict.fromkeys(bar.colour for bar in bars):
        mine = [bar for bar in bars if bar.colour == colour]
        edge: dict[str, Any] = {"edgecolor": "white"}
        if colour == WAITS:
            edge = {"edgecolor": "#8C8C8C", "linestyle": "--"}
        widths = [0.8 if bar.text or colour == WAITS else 0 for bar in mine]
        spans, place = [(bar.start, bar.length) for bar in mine], (middle - HEIGHT / 2, HEIGHT)
        ax.broken_barh(spans, place, facecolor=colour, linewidths=widths, snap=False, **edge)
    for bar in bars:
        if bar.text and fits(ax, bar.text, bar.length):
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL}
            ax.text(bar.start + bar.length / 2, middle, bar.text, color=text_on(bar.colour), **style)


def show_spans(sides: Mapping[str, pd.DataFrame], title: str, unit: str) -> None:
    """Show spans of `measure.lanes`: for each side, such as before and after, its lanes; all on one scale.

    Steps have their numbers. A thin line leads from each launch to the start of its step, and from the step's end to
    where its tokens are read.
    """
    drawn = {
        side: {name: [_bar(one) for one in lane.itertuples()] for name, lane in spans.groupby("lane", sort=False)}
        for side, spans in sides.items()
    }
    with new_axes(1.4 + 0.25 * _height_of(drawn)) as ax:
        places = draw_lanes(ax, drawn, title, f"time ({unit})")
        for side, spans in sides.items():
            if "host" in drawn[side]:
                _draw_links(ax, spans, places[side, "host"] + HEIGHT / 2, places[side, "device"] - HEIGHT / 2)
        there = {what for spans in sides.values() for what in spans.what}
        colour_legend(ax, {said: colour for what, (colour, said) in SPANS.items() if what in there}, ncols=3)


def _bar(span: Any) -> Bar:
    text = str(span.number) if span.lane in ("host", "device") else ""
    return Bar(span.start, span.end - span.start, SPANS[span.what][0], text)


def _draw_links(ax: Axes, spans: pd.DataFrame, above: float, below: float) -> None:
    """From the end of each launch to the start of the step, and from its end to the start of the read."""
    of = {what: spans[spans.what == what].set_index("number") for what in (PLAN, RUN, READ)}
    for times in ((of[PLAN].end, of[RUN].start), (of[READ].start, of[RUN].end)):
        ax.plot(times, (above, below), color="#8C8C8C", linewidth=0.8)
