"""Times along an axis: where a time lies in a picture, bars from one time to another, and the axis below them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from xml.etree import ElementTree

from .sheet import FAINT_INK, INK, LINE, LINE_HEIGHT, MARGIN, TEXT, Sheet, draw_shape, draw_text, text_width

LANE = 28  # the height of a bar


@dataclass(frozen=True, slots=True)
class Scale:
    """From a time to a place. pixels: of a unit of time."""

    left: float
    pixels: float

    def at(self, time: float) -> float:
        return self.left + self.pixels * time


def draw_bar(
    parent: ElementTree.Element,
    times: tuple[float, float],
    top: float,
    texts: Sequence[str],
    scale: Scale,
    fill: str,
    dashed: bool,
    data: Mapping[str, object],
) -> None:
    """A bar with the first of the texts that fits; none where it takes no time.

    dashed: nothing is done in it. data: more of its attributes, as `draw_shape` takes them.
    """
    left, right = map(scale.at, times)
    if right <= left:
        return
    style: dict[str, object] = {"fill": fill, "stroke": LINE if dashed else INK, "stroke_width": 1}
    style |= {"stroke_dasharray": "4 3"} if dashed else {}
    draw_shape(parent, "rect", **data, x=left, y=top, width=right - left, height=LANE, **style)
    fitting = [text for text in texts if text_width(text, TEXT) + 4 <= right - left]
    if fitting:
        colour = FAINT_INK if dashed else INK
        draw_text(parent, ((left + right) / 2, top + LANE / 2 + 4), fitting[0], colour=colour, anchor="middle")


def draw_axis(sheet: Sheet, end: float, scale: Scale, unit: str) -> None:
    """A line with about eight times on it."""
    step = _round_step(end / 8)
    y = sheet.y
    draw_shape(sheet.root, "line", x1=scale.left, y1=y, x2=scale.at(end), y2=y, stroke=LINE)
    for number in range(int(end / step) + 1):
        x = scale.at(number * step)
        draw_shape(sheet.root, "line", x1=x, y1=y, x2=x, y2=y + 5, stroke=LINE)
        draw_text(sheet.root, (x, y + 5 + TEXT), f"{number * step:.6g}", anchor="middle", colour=FAINT_INK)
    draw_text(sheet.root, (MARGIN, y + 5 + TEXT), unit, colour=FAINT_INK)
    sheet.y = y + 5 + LINE_HEIGHT + 8


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5, times a power of ten, that is not less."""
    power = 10.0 ** floor(log10(least))
    return next(number * power for number in (1, 2, 5, 10) if number * power >= least * (1 - 1e-9))
