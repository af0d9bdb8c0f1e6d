"""The rows that a decode step keeps on the device (lesson 064), number by number, drawn from the running engine."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ..checks import require
from ..decode.rows import FIELDS, KEY, TEMPERATURE, TOP_P
from ..kv.blocks import BlockTable
from ..lessons.l064 import Rows
from .grid import Cell, Grid, draw_grids, label
from .sheet import BY_DEVICE, EMPTY, INK, OWNER_COLOURS, USED, Picture, counted, plain

COLUMNS = ("token", "position", "temperature", "top-k", "top-p", "key")
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


def names_in(seats: Sequence[BlockTable], tables: Mapping[str, BlockTable]) -> tuple[str, ...]:
    """The names of the sessions in the rows. Raises `ConfigError` for a session without a name."""
    named = {id(table): plain(name) for name, table in tables.items()}
    for row, table in enumerate(seats):
        require(id(table) in named, f"row {row} holds a session without a name: give its table")
    return tuple(named[id(table)] for table in seats)


def see_rows(rows: Rows, tables: Mapping[str, BlockTable]) -> SeenRows:
    """What is in the rows now. tables: name -> `session.table`, of all sessions that any of the pictures shows.

    Raises `ConfigError` for a row whose session has no name, and for more rows or blocks than can be drawn.
    """
    few = rows.max_rows <= MOST_ROWS and rows.max_blocks <= MOST_BLOCKS
    told = f"{rows.max_rows} rows of {rows.max_blocks} blocks: at most {MOST_ROWS} of {MOST_BLOCKS} can be drawn"
    require(few, told)
    names, num_blocks = names_in(rows.tables, tables), tuple(map(len, rows.tables))
    colours = {plain(name): OWNER_COLOURS[n % len(OWNER_COLOURS)] for n, name in enumerate(tables)}
    return SeenRows(tuple(rows.state.tolist()), rows.max_rows, rows.max_blocks, names, num_blocks, colours)


def rows_map(now: SeenRows, since: SeenRows | None = None, uploaded: Mapping[int, int] = NOTHING) -> Picture:
    """All rows with their fields and tables. What is not in use is pale, with what it held last.

    uploaded: address in the buffer -> number, of what the host has written since; these cells have a thick outline.
    since: the same rows earlier; a cell that the device has changed since then, or since the host wrote it, has a tint.
    """
    title = f"{len(now.names)} of {counted(now.max_rows, 'row')} in use; one buffer of {len(now.numbers)} numbers"
    title += "; on the right the block tables"
    columns = range(FIELDS + now.max_blocks)
    rows = [
        [label("row", faint=True), *map(Cell, [*COLUMNS, *(f"[{entry}]" for entry in range(now.max_blocks))])],
        [label("address", faint=True), *(Cell(str(now.address(0, column)), faint=True) for column in columns)],
    ]
    said = [title]
    for row in range(now.max_rows):
        name = now.names[row] if row < len(now.names) else ""
        head = label(f"{row} {name or 'not used'}", now.colours[name] if name else "", faint=not name)
        rows.append([head, *(_cell(now, row, column, since, uploaded) for column in columns)])
        if name:
            said.append(f"row {row}, {name}: {', '.join(now.text(row, column) for column in columns)}")
    if since is not None:
        said.append(f"{counted(len(uploaded), 'number')} sent by the host")
    legend = [("outline", "written by the host")] if uploaded else []
    legend += [(BY_DEVICE, "changed by the device")] if since is not None else []
    return draw_grids(title, [Grid(rows)], legend, "; ".join(said))


def _cell(now: SeenRows, row: int, column: int, since: SeenRows | None, uploaded: Mapping[int, int]) -> Cell:
    address, used = now.address(row, column), now.in_use(row, column)
    was = uploaded.get(address, since.numbers[address]) if since else now.numbers[address]
    fill = BY_DEVICE if used and was != now.numbers[address] else USED if used else EMPTY
    return Cell(now.text(row, column), fill, INK if address in uploaded else "", faint=not used)
