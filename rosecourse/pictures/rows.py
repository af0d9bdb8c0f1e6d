"""The rows that a decode step keeps on the device (lesson 064), number by number, drawn from the running engine."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import cycle
from typing import cast

from ..decode.rows import FIELDS, KEY, TEMPERATURE, TOP_P
from ..kv.blocks import BlockTable
from ..lessons.l064 import Rows
from .colours import BY_DEVICE, EMPTY, INK, OWNER_COLOURS, USED
from .grid import Cell, Grid, draw_grids, heads, label
from .sheet import Picture, counted

COLUMNS = ("token", "position", "temperature", "top-k", "top-p", "key")


def rows_map(
    rows: Rows, tables: Mapping[str, BlockTable], since: Picture | None = None, sent: Mapping[int, int] | None = None
) -> Picture:
    """All rows with their fields and tables as they are now. What is not in use is pale, with what it held last.

    tables: name -> `session.table`, of all sessions that any of the pictures shows. since: an earlier picture of these
    rows; a cell that the device has changed since then, or since the host wrote it, has a tint. sent: address in
    the buffer -> number, of what the host has written since; these cells have a thick outline.
    """
    numbers: list[int] = rows.state.tolist()
    uploaded = sent or {}
    was = {**dict(enumerate(cast("list[int]", since.snapshot))), **uploaded} if since else numbers
    colours = dict(zip(tables, cycle(OWNER_COLOURS), strict=False))
    named = {id(table): name for name, table in tables.items()}
    names, columns = [named[id(table)] for table in rows.tables], range(FIELDS + rows.max_blocks)

    def address(row: int, column: int) -> int:
        fields = FIELDS * rows.max_rows
        return column * rows.max_rows + row if column < FIELDS else fields + row * rows.max_blocks + column - FIELDS

    def cell(row: int, column: int) -> Cell:
        at = address(row, column)
        used = row < len(names) and column < FIELDS + len(rows.tables[row])  # else nobody reads it
        fill = EMPTY if not used else USED if was[at] == numbers[at] else BY_DEVICE
        return Cell(_in_words(numbers[at], column), fill, INK if at in uploaded else "", faint=not used)

    entries = [f"[{entry}]" for entry in range(rows.max_blocks)]
    table = [
        [label("row", faint=True), *map(Cell, [*COLUMNS, *entries])],
        [label("address", faint=True), *heads([address(0, column) for column in columns])],
    ]
    for row in range(rows.max_rows):
        name = names[row] if row < len(names) else ""
        head = label(f"{row} {name or 'not used'}", colours.get(name, ""), faint=not name)
        table.append([head, *(cell(row, column) for column in columns)])
    title = f"{len(names)} of {counted(rows.max_rows, 'row')} in use; one buffer of {len(numbers)} numbers"
    title += "; on the right the block tables"
    said = [title, *(": ".join([row[0].text, ", ".join(c.text for c in row[1:])]) for row in table[2 : 2 + len(names)])]
    legend = [("outline", "written by the host")] if uploaded else []
    legend += [(BY_DEVICE, "changed by the device")] if since else []
    return draw_grids(title, [Grid(table)], legend, "; ".join(said), numbers)


def _in_words(number: int, column: int) -> str:
    """What has 64 bits of a float64 as a float, and a key in hexadecimal."""
    if column in (TEMPERATURE, TOP_P):
        return f"{struct.unpack('d', struct.pack('q', number))[0]:g}"
    return f"{number:08x}" if column == KEY else f"#{number}" if column >= FIELDS else str(number)
