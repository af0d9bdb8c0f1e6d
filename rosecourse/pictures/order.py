"""In which order a decode step calls its stages, and what each layer does in them, drawn from the calls of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from xml.etree import ElementTree

from ..errors import ConfigError
from .colours import COLOURS
from .sheet import (
    BOLD,
    EMPTY,
    FAINT_INK,
    GAP,
    INK,
    LINE,
    LINE_HEIGHT,
    MARGIN,
    TEXT,
    Picture,
    Sheet,
    draw_shape,
    draw_text,
    text_width,
)

LAYER_WIDTH, CALL_HEIGHT, PADDING = 54, 42, 6  # of what a layer does, and the room around it in its stage
CALL_COLOURS = {"write": COLOURS["kv_append"], "attend": COLOURS["forward"]}  # others are white


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a decode step: a stage itself, or what it does for a layer.

    work: such as "write"; "" is the stage as a whole. layer: None is for all layers.
    """

    stage: str
    work: str = ""
    layer: int | None = None


def order_of_calls(title: str, calls: Sequence[Call]) -> Picture:
    """The stages of one step from left to right, with what each layer does in them in its order.

    Of more than three layers, the first two and the last are drawn. Raises `ConfigError` for no calls.
    """
    if not calls:
        raise ConfigError("no calls are given: give those of a decode step")
    stages = [(stage, _folded(list(inside))) for stage, inside in groupby(calls, key=lambda call: call.stage)]
    widths = [_width(stage, inside) for stage, inside in stages]
    sheet = Sheet(sum(widths) + 2 * GAP * (len(widths) - 1))
    sheet.heading(title)
    x = MARGIN
    for (stage, inside), width in zip(stages, widths, strict=True):
        _draw_stage(sheet.root, (x, sheet.y), width, stage, inside)
        x += width + 2 * GAP
    sheet.y += _height() + GAP
    said = "; ".join(f"{stage}: {', '.join(map(_said, inside)) or 'no layers'}" for stage, inside in stages)
    return sheet.picture(f"{title}. {said}", None)


def _folded(calls: list[Call]) -> list[Call | None]:
    """What is drawn of a stage's calls; None stands for the layers in the middle."""
    inside = [call for call in calls if call.work]
    layers = [call.layer for call in inside if call.layer is not None]
    if not layers or max(layers) < 3:
        return list(inside)
    drawn: list[Call | None] = []
    for call in inside:
        if call.layer is None or call.layer < 2 or call.layer == max(layers):
            drawn.append(call)
        elif drawn[-1] is not None:
            drawn.append(None)
    return drawn


def _width(stage: str, inside: Sequence[Call | None]) -> int:
    name = ceil(text_width(stage, TEXT * BOLD)) + 2 * PADDING
    return max(name, sum(LAYER_WIDTH if call else LAYER_WIDTH // 2 for call in inside) + 2 * PADDING)


def _height() -> int:
    return LINE_HEIGHT + CALL_HEIGHT + 3 * PADDING


def _draw_stage(
    parent: ElementTree.Element, place: tuple[int, int], width: int, stage: str, inside: Sequence[Call | None]
) -> None:
    (x, y), height = place, _height()
    group = draw_shape(parent, "g", class_="stage", data_stage=stage)
    draw_shape(group, "rect", x=x, y=y, width=width, height=height, rx=4, fill=EMPTY, stroke=LINE)
    draw_text(group, (x + PADDING, y + PADDING + TEXT), stage, weight="bold")
    left, top = x + PADDING, y + 2 * PADDING + LINE_HEIGHT
    for call in inside:
        if call is None:
            draw_text(group, (left + LAYER_WIDTH / 4, top + CALL_HEIGHT / 2 + 4), "…", anchor="middle")
            left += LAYER_WIDTH // 2
            continue
        _draw_call(group, (left, top), call)
        left += LAYER_WIDTH


def _draw_call(parent: ElementTree.Element, place: tuple[int, int], call: Call) -> None:
    """A box with what is done, and the layer it is done for; a bar on its top says in colour what it is."""
    x, y = place
    layer = "" if call.layer is None else call.layer
    group = draw_shape(parent, "g", class_="call", data_work=call.work, data_layer=layer)
    box = {"x": x + 2, "y": y, "width": LAYER_WIDTH - 4}
    draw_shape(group, "rect", **box, height=CALL_HEIGHT, fill="white", stroke=INK)
    if call.work in CALL_COLOURS:
        draw_shape(group, "rect", **box, height=5, fill=CALL_COLOURS[call.work])
    middle = x + LAYER_WIDTH / 2
    draw_text(group, (middle, y + 20), call.work, weight="bold", anchor="middle")
    if call.layer is not None:
        draw_text(group, (middle, y + 37), f"layer {call.layer}", colour=FAINT_INK, anchor="middle")


def _said(call: Call | None) -> str:
    if call is None:
        return "…"
    return call.work if call.layer is None else f"{call.work} layer {call.layer}"
