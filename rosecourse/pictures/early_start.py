"""Kernels in a row on a time axis: what each does from its launch to its end, and where they overlap."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from ..measure.early_start_simulation import ASK, LAUNCH, RUN, TAIL, WAIT, WORK, Row
from .drawing import new_axes
from .labels import colour_legend
from .time_axis import WAITS, Bar, draw_lanes, height_of
from .two_lanes import check

MOST_KERNELS = 24  # that can be drawn
# Neighbours differ in brightness, too.
FILLS = {LAUNCH: "#B8B8B8", ASK: "#7FCDB4", WAIT: WAITS, WORK: "#E69F00", TAIL: "#F7DDA8", RUN: "#E69F00"}
SAID = {
    LAUNCH: "being launched",
    ASK: "ask for weights",
    WAIT: "wait for the kernel before",
    WORK: "work",
    TAIL: "its last programs work",
    RUN: "from its start to its end, as recorded",
}


def draw_rows(rows: Mapping[str, Row], title: str) -> None:
    """Show for each row of kernels their bars, all rows on one scale; kernels of one name share a lane.

    Raises `ConfigError` for nothing to draw, too many kernels, or different units.
    """
    check(rows, "kernels", [len(row.names) for row in rows.values()], MOST_KERNELS)
    with new_axes(1.3 + 0.22 * height_of(_bars(rows))) as ax:
        draw_kernels(ax, rows, title)


def draw_kernels(ax: Axes, rows: Mapping[str, Row], title: str) -> None:
    """What `draw_rows` shows, on axes."""
    draw_lanes(ax, _bars(rows), title, f"time ({next(iter(rows.values())).unit})")
    drawn = {span.what for row in rows.values() for span in row.spans if span.duration}
    colour_legend(ax, {SAID[what]: FILLS[what] for what in FILLS if what in drawn}, ncols=3)


def headline(name: str, row: Row) -> str:
    """What the row comes to, in words."""
    does = "runs" if any(span.what == RUN for span in row.spans) else "works"
    time = f"{name}: {row.end:.4g} {row.unit}"
    if not row.gaps:
        return f"{time}; between the first kernel and the last, one always {does}"
    return f"{time}; between kernels lie {row.in_gaps:.3g} {row.unit} in which none {does}"


def _bars(rows: Mapping[str, Row]) -> dict[str, dict[str, list[Bar]]]:
    sides: dict[str, dict[str, list[Bar]]] = {}
    for name, row in rows.items():
        lanes = sides[headline(name, row)] = {one: [] for one in row.names}
        for span in row.spans:
            if span.duration:
                lanes[row.names[span.kernel]].append(Bar(span.start, span.duration, FILLS[span.what]))
    return sides
