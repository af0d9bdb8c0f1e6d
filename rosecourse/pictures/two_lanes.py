"""Two lanes on a time axis: what the host does, and what the device does, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from ..checks import require
from ..measure.early_start_simulation import Row
from ..measure.pipeline_simulation import PLAN, READ, RUN, WAIT, Lanes, Span
from .drawing import new_axes
from .labels import colour_legend
from .time_axis import HEIGHT, WAITS, Bar, draw_lanes, height_of

MOST_STEPS = 60  # that can be drawn
# Light enough for black text, and of three brightnesses.
FILLS = {PLAN: "#7FCDB4", READ: "#E3CFEA", RUN: "#E69F00", WAIT: WAITS}
SAID = {
    f"{PLAN}: plan and launch a step": FILLS[PLAN],
    f"{READ}: read its tokens, and hand them out": FILLS[READ],
    f"{RUN}: run the step": FILLS[RUN],
    "wait, or nothing to do": WAITS,
}


def two_lanes(sides: Mapping[str, Lanes], title: str) -> None:
    """Show for each side, such as before and after, the host's lane above and the device's below; all on one scale.

    The bars have the numbers of their steps. A thin line leads from each launch to the start of its step, and from the
    step's end to where its tokens are read. Raises `ConfigError` for nothing to draw, too many steps, or different
    units.
    """
    check(sides, "steps", [len(lanes.device) for lanes in sides.values()], MOST_STEPS)
    with new_axes(1.5 + 0.28 * height_of(_bars(sides))) as ax:
        draw_sides(ax, sides, title)


def check(sides: Mapping[str, Lanes | Row], what: str, counts: Sequence[int], most: int) -> None:
    """Raise `ConfigError` for nothing to draw, more than `most`, or different units."""
    require(len(sides) > 0, f"there are no {what} to draw: give one side or more")
    require(max(counts) <= most, f"{max(counts)} {what}: at most {most} can be drawn")
    units = {side.unit for side in sides.values()}
    require(len(units) == 1, f"the times are in {', '.join(sorted(units))}: give all in one unit")
    require(max(side.end for side in sides.values()) > 0, "nothing here takes any time: give a time above 0")


def draw_sides(ax: Axes, sides: Mapping[str, Lanes], title: str) -> None:
    """What `two_lanes` shows, on axes."""
    unit = next(iter(sides.values())).unit
    places = draw_lanes(ax, _bars(sides), title, f"time ({unit})")
    for name, lanes in sides.items():
        heading = headline(name, lanes)
        _draw_links(ax, lanes, places[heading, "host"] + HEIGHT / 2, places[heading, "device"] - HEIGHT / 2)
    colour_legend(ax, SAID, ncols=2)


def headline(name: str, lanes: Lanes) -> str:
    """What the lanes of a side come to, in words."""
    pauses = "it never pauses" if not lanes.idle else f"it pauses {len(lanes.idle)} times"
    if len(lanes.idle) == 1:
        pauses = "it pauses once"
    step = f"a step every {lanes.step_time:.3g} {lanes.unit}"
    return f"{name}: {step}; the device is busy for {lanes.busy_share:.0%} of the time, {pauses}"


def _bars(sides: Mapping[str, Lanes]) -> dict[str, dict[str, list[Bar]]]:
    def bar(span: Span) -> Bar:
        return Bar(span.start, span.end - span.start, FILLS[span.what], str(span.step))

    return {
        headline(name, lanes): {
            "host": [bar(span) for span in lanes.host],
            "": [],
            "device": [*(Bar(start, end - start, WAITS) for start, end in lanes.idle), *map(bar, lanes.device)],
        }
        for name, lanes in sides.items()
    }


def _draw_links(ax: Axes, lanes: Lanes, above: float, below: float) -> None:
    """From the end of each launch to the start of the step, and from its end to the start of the read."""
    starts = {span.step: span.start for span in reversed(lanes.device)}
    stops = {span.step: span.end for span in lanes.device}
    for span in lanes.host:
        if span.what in (PLAN, READ) and span.step in starts:  # in a part of a run, some are not there
            times = (span.end, starts[span.step]) if span.what == PLAN else (span.start, stops[span.step])
            ax.plot(times, (above, below), color="#8C8C8C", linewidth=0.8)
