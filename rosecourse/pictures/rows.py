"""The rows that a decode step keeps on the device (lesson 064), number by number, drawn from the running engine."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from xml.etree import ElementTree

from ..decode.rows import FIELDS, KEY, TEMPERATURE, TOP_P
from ..errors import ConfigError
from ..kv.blocks import BlockTable
from ..lessons.l064 import Rows
from .sheet import (
    EMPTY,
    FAINT_INK,
    GAP,
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
    fit,
    plain,
)

COLUMNS = (("token", 50), ("position", 68), ("temperature", 94), ("top-k", 46), ("top-p", 46), ("key", 78))
NAME_WIDTH, ENTRY, APART, HEIGHT = 84, 34, 14, 24  # a row's name, a table's entry, fields from table, a row's height
BY_DEVICE = "#CDE7F7"  # a cell that the device has changed
MOST_ROWS, MOST_BLOCKS = 16, 12  # that can be drawn
NOTHING: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SeenRows:
    """The buffer of the rows at one moment.

    numbers: all of it, flat. names: of the sessions in the rows, in their order; num_blocks: in the table of each;
    colours: of each name.
    """

    numbers: tuple[int, ...]
    max_rows: int
    max_blocks: int
    names: tuple[str, ...]
    num_blocks: tuple[int, ...]
    colours: Mapping[str, str]

    def address(self, row: int, column: int) -> int:
        """Where a cell lies. column: a field, or `FIELDS` and the number of an entry of the table."""
        if column < FIELDS:
            return column * self.max_rows + row
        return FIELDS * self.max_rows + row * self.max_blocks + column - FIELDS

    def in_use(self, row: int, column: int) -> bool:
        """Whether anybody reads a cell: it is in the row of a session, and not past the end of its table."""
        return row < len(self.names) and column < FIELDS + self.num_blocks[row]

    def text(self, row: int, column: int) -> str:
        """A cell in words: what has 64 bits of a float64 as a float, and a key in hexadecimal."""
        number = self.numbers[self.address(row, column)]
        if column in (TEMPERATURE, TOP_P):
            return f"{struct.unpack('d', struct.pack('q', number))[0]:g}"
        if column == KEY:
            return f"{number:08x}"
        return f"#{number}" if column >= FIELDS else str(number)


def see_rows(rows: Rows, tables: Mapping[str, BlockTable]) -> SeenRows:
    """What is in the rows now. tables: name -> `session.table`, of all sessions that any of the pictures shows.

    Raises `ConfigError` for a row whose session has no name, and for more rows or blocks than can be drawn.
    """
    if rows.max_rows > MOST_ROWS or rows.max_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"{rows.max_rows} rows of {rows.max_blocks} blocks: at most {MOST_ROWS} of {MOST_BLOCKS} can be drawn"
        )
    named = {id(table): plain(name) for name, table in tables.items()}
    missing = [row for row, table in enumerate(rows.tables) if id(table) not in named]
    if missing:
        raise ConfigError(f"row {missing[0]} holds a session without a name: give its table")
    colours = {name: OWNER_COLOURS[n % len(OWNER_COLOURS)] for n, name in enumerate(named.values())}
    names = tuple(named[id(table)] for table in rows.tables)
    num_blocks = tuple(map(len, rows.tables))
    return SeenRows(tuple(rows.state.tolist()), rows.max_rows, rows.max_blocks, names, num_blocks, colours)


def rows_map(now: SeenRows, since: SeenRows | None = None, uploaded: Mapping[int, int] = NOTHING) -> Picture:
    """All rows with their fields and tables. What is not in use is pale, with what it held last.

    uploaded: address in the buffer -> number, of what the host has written since; these cells have a thick outline.
    since: the same rows earlier; a cell that the device has changed since then, or since the host wrote it, has a tint.
    """
    table = now.max_blocks * ENTRY
    sheet = Sheet(NAME_WIDTH + sum(width for _, width in COLUMNS) + APART + table)
    sheet.heading(_title(now))
    _draw_headings(sheet, now)
    for row in range(now.max_rows):
        _draw_row(sheet, now, row, since, uploaded)
        sheet.y += HEIGHT + 2
    sheet.y += GAP
    marks = [("outline", "written by the host")] if uploaded else []
    if since is not None:
        marks.append((BY_DEVICE, "changed by the device"))
    sheet.legend(marks)
    return sheet.picture(_description(now, since, uploaded), None)


def _draw_headings(sheet: Sheet, now: SeenRows) -> None:
    """The name of each column, and the address of its cell in row 0."""
    draw_text(sheet.root, (MARGIN, sheet.y + TEXT), "row", colour=FAINT_INK)
    draw_text(sheet.root, (MARGIN, sheet.y + TEXT + LINE_HEIGHT + 1), "address", colour=FAINT_INK)
    entries = [f"[{entry}]" for entry in range(now.max_blocks)]
    for column, name in enumerate([*(name for name, _ in COLUMNS), *entries]):
        x, width = _place(column)
        draw_text(sheet.root, (x + width / 2, sheet.y + TEXT), name, anchor="middle", weight="bold")
        at = (x + width / 2, sheet.y + TEXT + LINE_HEIGHT + 1)
        draw_text(sheet.root, at, str(now.address(0, column)), colour=FAINT_INK, anchor="middle")
    sheet.y += 2 * LINE_HEIGHT + 7


def _place(column: int) -> tuple[int, int]:
    """Left and width of a column."""
    widths = [width for _, width in COLUMNS]
    left = MARGIN + NAME_WIDTH
    if column < FIELDS:
        return left + sum(widths[:column]), widths[column]
    return left + sum(widths) + APART + (column - FIELDS) * ENTRY, ENTRY


def _draw_row(sheet: Sheet, now: SeenRows, row: int, since: SeenRows | None, uploaded: Mapping[int, int]) -> None:
    used, y = row < len(now.names), sheet.y
    name = now.names[row] if used else ""
    group = draw_shape(sheet.root, "g", class_="row", data_row=row, data_session=name)
    draw_text(group, (MARGIN, y + 16), f"{row}", colour=INK if used else FAINT_INK)
    if used:
        draw_shape(group, "rect", x=MARGIN + 22, y=y + 6, width=12, height=12, fill=now.colours[name])
        said = fit(name, NAME_WIDTH - 22 - SWATCH, TEXT)
        draw_text(group, (MARGIN + 22 + SWATCH, y + 16), said, weight="bold")
    else:
        draw_text(group, (MARGIN + 22, y + 16), "not used", colour=FAINT_INK)
    columns = range(FIELDS + now.max_blocks)
    for column in columns:
        _draw_cell(group, y, now, (row, column), since, uploaded)
    for column in columns:  # on top of its neighbours' lines
        if now.address(row, column) in uploaded:
            x, width = _place(column)
            box = {"x": x + 1, "y": y + 1, "width": width - 2, "height": HEIGHT - 2}
            draw_shape(group, "rect", class_="uploaded", **box, fill="none", stroke=INK, stroke_width=3)


def _draw_cell(
    parent: ElementTree.Element,
    y: int,
    now: SeenRows,
    cell: tuple[int, int],
    since: SeenRows | None,
    uploaded: Mapping[int, int],
) -> None:
    address, (x, width) = now.address(*cell), _place(cell[1])
    used = now.in_use(*cell)
    by_device = used and since is not None and uploaded.get(address, since.numbers[address]) != now.numbers[address]
    fill = BY_DEVICE if by_device else "white" if used else EMPTY
    marks = {"data_address": address, "data_by_device": int(by_device)}
    draw_shape(parent, "rect", class_="cell", **marks, x=x, y=y, width=width, height=HEIGHT, fill=fill, stroke=LINE)
    colour = INK if used else FAINT_INK
    draw_text(parent, (x + width / 2, y + 16), now.text(*cell), colour=colour, anchor="middle")


def _title(now: SeenRows) -> str:
    told = f"{len(now.names)} of {counted(now.max_rows, 'row')} in use"
    return f"{told}; one buffer of {len(now.numbers)} numbers; on the right the block tables"


def _description(now: SeenRows, since: SeenRows | None, uploaded: Mapping[int, int]) -> str:
    columns = range(FIELDS + now.max_blocks)
    rows = (
        f"row {row}, {name}: {', '.join(now.text(row, column) for column in columns)}"
        for row, name in enumerate(now.names)
    )
    sent = [f"{counted(len(uploaded), 'number')} sent by the host"] if since is not None else []
    return "; ".join([_title(now), *rows, *sent])
