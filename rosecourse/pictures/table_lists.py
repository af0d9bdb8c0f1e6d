"""The block lists that the host keeps of each session: one for each layer, or one for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any
from xml.etree import ElementTree

from ..errors import BlockError, ConfigError
from ..lessons.l035_blocks import KVBlockManager
from .sheet import (
    BOLD,
    CACHED_COLOUR,
    INK,
    LINE,
    LINE_HEIGHT,
    MARGIN,
    OWNER_COLOURS,
    SWATCH,
    TEXT,
    Picture,
    Sheet,
    counted,
    draw_shape,
    draw_text,
    plain,
    text_width,
)

LABEL = 68  # room for the name of a list's layer
BOX = 32, 20  # width and height of one block's number
PITCH = 24  # from one list to the next
BETWEEN = 28  # two sessions
NARROWEST = 240  # what the heading and the legend want


@dataclass(frozen=True, slots=True)
class SessionLists:
    """What the cache keeps of one session.

    held: how many tokens its lists hold, one number unless they disagree. lists: of block indices. shared: those with
    more than one owner, as (number of the list, place in it).
    """

    name: str
    colour: str
    held: tuple[int, ...]
    lists: tuple[tuple[int, ...], ...]
    shared: frozenset[tuple[int, int]]

    @property
    def heading(self) -> str:
        *fewer, most = self.held
        return f"{self.name}: {''.join(f'{number} or ' for number in fewer)}{counted(most, 'token')}"

    @property
    def width(self) -> int:
        heading = SWATCH + ceil(text_width(self.heading, TEXT * BOLD))
        return max(heading, BOX[0] * max(map(len, self.lists)))

    def differs(self, number: int, place: int) -> bool:
        """Whether a list names another block than the first list does, in the same place."""
        return self.lists[number][place : place + 1] != self.lists[0][place : place + 1]


def table_lists(kv: Any, tables: Mapping[str, Any]) -> Picture:
    """Every block list that a cache keeps of these sessions, one under the other, as block indices.

    tables: name -> `session.table`. A block with several owners is grey; a number that differs from the first list's in
    the same place has a thick outline. Raises `BlockError` for a table that is freed, and `ConfigError` for no tables.
    """
    if not tables:
        raise ConfigError("tables is empty: give at least one session's table")
    told = [_told(kv, plain(name), table, number) for number, (name, table) in enumerate(tables.items())]
    num_lists = len(told[0].lists)
    sheet = Sheet(max(NARROWEST, LABEL + sum(one.width for one in told) + BETWEEN * (len(told) - 1)))
    sheet.heading(_title(told))
    top, x = sheet.y, MARGIN + LABEL
    names = [f"layer {number}" for number in range(num_lists)] if num_lists > 1 else ["all layers"]
    for number, name in enumerate(names):
        draw_text(sheet.root, (MARGIN, top + LINE_HEIGHT + 6 + number * PITCH + 14), name)
    for one in told:
        _draw_session(sheet.root, (x, top), one)
        x += one.width + BETWEEN
    sheet.y = top + LINE_HEIGHT + 6 + num_lists * PITCH + 4
    sheet.legend(_legend(told))
    spoken = "; ".join(f"{one.name}: {', '.join(str(list(blocks)) for blocks in one.lists)}" for one in told)
    return sheet.picture(f"{_title(told)}. {spoken}", None)


def _told(kv: Any, name: str, table: Any, number: int) -> SessionLists:
    if table is None or table.freed:
        raise BlockError(f"session {name!r} holds no blocks: it was freed, or never computed")
    per_layer = isinstance(kv, KVBlockManager)
    lists = table if per_layer else [table]
    shared = {(n, place) for n, ids in enumerate(lists) for place, one in enumerate(ids) if kv.info(one).owners > 1}
    indices = tuple(tuple(kv.block_index(one) if per_layer else one for one in ids) for ids in lists)
    colour = OWNER_COLOURS[number % len(OWNER_COLOURS)]
    held = {_end(kv, ids) for ids in lists} if per_layer else {table.num_tokens}
    return SessionLists(name, colour, tuple(sorted(held)), indices, frozenset(shared))


def _end(kv: KVBlockManager, block_ids: list[int]) -> int:
    """How many tokens one layer's list holds."""
    last = kv.info(block_ids[-1]) if block_ids else None
    return last.start + last.length if last else 0


def _title(told: list[SessionLists]) -> str:
    lists = sum(len(one.lists) for one in told)
    numbers = sum(len(blocks) for one in told for blocks in one.lists)
    return f"{counted(lists, 'list')} of {counted(len(told), 'session')}, {counted(numbers, 'number')}"


def _draw_session(parent: ElementTree.Element, place: tuple[int, int], one: SessionLists) -> None:
    x, y = place
    draw_shape(parent, "rect", x=x, y=y + 1, width=12, height=12, fill=one.colour)
    draw_text(parent, (x + SWATCH, y + TEXT), one.heading, weight="bold")
    y += LINE_HEIGHT + 6
    width, height = BOX
    for number, blocks in enumerate(one.lists):
        top = y + number * PITCH
        group = draw_shape(parent, "g", class_="list", data_session=one.name, data_layer=number)
        for column, block in enumerate(blocks):
            fill = CACHED_COLOUR if (number, column) in one.shared else "white"
            left = x + column * width
            draw_shape(group, "rect", x=left, y=top, width=width, height=height, fill=fill, stroke=LINE)
            draw_text(group, (left + width // 2, top + 14), f"#{block}", anchor="middle")
        for column in range(len(blocks)):
            if one.differs(number, column):  # on top of its neighbours' lines
                box = {"x": x + column * width, "y": top, "width": width, "height": height}
                draw_shape(group, "rect", class_="differs", **box, fill="none", stroke=INK, stroke_width=3)


def _legend(told: list[SessionLists]) -> list[tuple[str, str]]:
    entries = []
    if any(one.shared for one in told):
        entries.append((CACHED_COLOUR, "has several owners"))
    places = ((one, n, place) for one in told for n, blocks in enumerate(one.lists) for place in range(len(blocks)))
    if any(one.differs(n, place) for one, n, place in places):
        entries.append(("outline", "another index than in layer 0"))
    return entries
