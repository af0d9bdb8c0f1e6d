"""Two lanes on a time axis: what the host does, and what the device does, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from ..checks import require
from ..measure.pipeline_simulation import PLAN, READ, RUN, WAIT, Lanes, Span
from .sheet import (
    EMPTY,
    FAINT_INK,
    LINE_HEIGHT,
    MARGIN,
    TEXT,
    WIDTH,
    Picture,
    Sheet,
    draw_shape,
    draw_text,
    plain,
)
from .time_axis import LANE, Scale, draw_axis, draw_bar

NAME_WIDTH, BETWEEN = 62, 22  # the lanes' names on the left, and the room for the links
MOST_STEPS = 60  # that can be drawn
# Light enough for black text, and of three brightnesses: the words in the bars tell them apart without any colour.
FILLS = {PLAN: "#7FCDB4", READ: "#E3CFEA", RUN: "#E69F00", WAIT: "white"}
SAID = {
    PLAN: "plan and launch a step",
    READ: "read its tokens, and hand them out",
    WAIT: "wait for the device",
    RUN: "run the step",
}


def two_lanes(sides: Mapping[str, Lanes], title: str) -> Picture:
    """For each side, such as before and after, the host's lane above and the device's below; all on one scale.

    A thin line leads from each launch to the start of its step, and from the step's end to where its tokens are read.
    Dashed boxes are times of waiting. Raises `ConfigError` for nothing to draw, too many steps, or different units.
    """
    require(len(sides) > 0, "there are no lanes to draw: give one side or more")
    most = max(len(lanes.device) for lanes in sides.values())
    require(most <= MOST_STEPS, f"{most} steps: at most {MOST_STEPS} can be drawn")
    units = {lanes.unit for lanes in sides.values()}
    require(len(units) == 1, f"the lanes are in {', '.join(sorted(units))}: give all in one unit")
    inner = WIDTH - 2 * MARGIN
    end = max(lanes.end for lanes in sides.values())
    require(end > 0, "nothing in these lanes takes any time: give a time above 0")
    scale = Scale(MARGIN + NAME_WIDTH, (inner - NAME_WIDTH - 4) / end)
    sheet = Sheet(inner)
    sheet.heading(plain(title))
    sheet.legend([(FILLS[what], f"{what}: {SAID[what]}") for what in (PLAN, READ, RUN)])
    for name, lanes in sides.items():
        sheet.y += 6
        draw_text(sheet.root, (MARGIN, sheet.y + TEXT), headline(plain(name), lanes), weight="bold")
        sheet.y += LINE_HEIGHT + 6
        _draw_side(sheet, plain(name), lanes, scale)
    draw_axis(sheet, end, scale, units.pop())
    said = "; ".join(headline(plain(name), lanes) for name, lanes in sides.items())
    return sheet.picture(f"{plain(title)}. {said}", None)


def headline(name: str, lanes: Lanes) -> str:
    """What the lanes of a side come to, in words."""
    pauses = "it never pauses" if not lanes.idle else f"it pauses {len(lanes.idle)} times"
    if len(lanes.idle) == 1:
        pauses = "it pauses once"
    step = f"a step every {lanes.step_time:.3g} {lanes.unit}"
    return f"{name}: {step}; the device is busy for {lanes.busy_share:.0%} of the time, {pauses}"


def _draw_side(sheet: Sheet, name: str, lanes: Lanes, scale: Scale) -> None:
    """The two lanes, the links between them, and the times in which the device has nothing to do."""
    group = draw_shape(sheet.root, "g", class_="side", data_side=name)
    host, device = sheet.y, sheet.y + LANE + BETWEEN
    for text, top in (("host", host), ("device", device)):
        draw_text(group, (MARGIN, top + LANE / 2 + 4), text)
    _draw_links(group, lanes, host + LANE, device, scale)
    for span in lanes.host:
        _draw_span(group, "host", span, host, scale)
    for start, end in lanes.idle:
        _draw_box(group, ("device", "idle", -1), (start, end), device, ["nothing to do", "idle"], scale)
    for span in lanes.device:
        _draw_span(group, "device", span, device, scale)
    sheet.y = device + LANE + 10


def _draw_span(parent: ElementTree.Element, lane: str, span: Span, top: float, scale: Scale) -> None:
    word = "waits" if span.what == WAIT else span.what
    texts = [f"{word} {span.step}", word if span.what == WAIT else str(span.step)]
    _draw_box(parent, (lane, span.what, span.step), (span.start, span.end), top, texts, scale)


def _draw_box(
    parent: ElementTree.Element,
    which: tuple[str, str, int],
    times: tuple[float, float],
    top: float,
    texts: Sequence[str],
    scale: Scale,
) -> None:
    """A bar with the first of the texts that fits. which: lane, what it is, and the step."""
    lane, what, step = which
    fill, dashed = FILLS.get(what, EMPTY), what in (WAIT, "idle")
    data = {"class_": what, "data_lane": lane, "data_step": step}
    draw_bar(parent, times, top, texts, scale, fill, dashed, data)


def _draw_links(parent: ElementTree.Element, lanes: Lanes, above: float, below: float, scale: Scale) -> None:
    """From the end of each launch to the start of the step, and from its end to the start of the read."""
    starts = {span.step: span.start for span in reversed(lanes.device)}
    stops = {span.step: span.end for span in lanes.device}
    for span in lanes.host:
        if span.what not in (PLAN, READ) or span.step not in starts:  # in a part of a run, some are not there
            continue
        ends = (scale.at(span.end), above), (scale.at(starts[span.step]), below)
        if span.what == READ:
            ends = (scale.at(stops[span.step]), below), (scale.at(span.start), above)
        (x0, y0), (x1, y1) = ends
        link = {"class_": f"link {span.what}", "data_step": span.step}
        draw_shape(parent, "line", **link, x1=x0, y1=float(y0), x2=x1, y2=float(y1), stroke=FAINT_INK, stroke_width=1)
