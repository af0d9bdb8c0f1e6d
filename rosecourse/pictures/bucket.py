"""The bucket of a decode step: which rows a graph computes, who sits there, and where each of them writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..checks import require
from ..decode.rows import LIVE, POSITION, TOKEN, Rows
from ..kv.blocks import BlockTable
from .grid import Cell, Grid, draw_grids, label
from .rows import names_in
from .sheet import EMPTY, OWNER_COLOURS, USED, Picture, counted

COLUMNS = ("token", "position", "live", "writes to", "its outcome")
MOST_ROWS = 24  # that can be drawn


@dataclass(frozen=True, slots=True)
class SeenRow:
    """One row of a bucket. name: of the session that sits there, or empty for a pad; block, slot: where it writes."""

    name: str
    token: int
    position: int
    live: int
    block: int
    slot: int


@dataclass(frozen=True, slots=True)
class SeenBucket:
    """All rows of a bucket at one moment, between `plan` and the run. spare: the block that no session can hold."""

    rows: tuple[SeenRow, ...]
    spare: int

    @property
    def num_pads(self) -> int:
        return sum(not row.name for row in self.rows)


def see_bucket(rows: Rows, size: int, tables: Mapping[str, BlockTable]) -> SeenBucket:
    """The first `size` rows as a graph would find them now. tables: name -> `session.table`, of all who sit there.

    Raises `ConfigError` for more rows than can be drawn or than there are, and for a session without a name.
    """
    fits = len(rows.tables) <= size <= min(MOST_ROWS, rows.max_rows)
    require(fits, f"a bucket of {size} rows for {len(rows.tables)} sessions: at most {MOST_ROWS} can be drawn")
    names = names_in(rows.tables, tables)
    fields, block_tables, block_size = rows.fields.tolist(), rows.block_tables.tolist(), rows.kv.block_size
    seen = []
    for row in range(size):
        position = fields[POSITION][row]
        name = names[row] if row < len(names) else ""
        block = block_tables[row][position // block_size]
        seen.append(SeenRow(name, fields[TOKEN][row], position, fields[LIVE][row], block, position % block_size))
    return SeenBucket(tuple(seen), rows.kv.num_blocks)


def bucket_map(bucket: SeenBucket) -> Picture:
    """Each row with what the graph reads of it and where it writes; pads are pale."""
    sessions = counted(len(bucket.rows) - bucket.num_pads, "session")
    title = f"A bucket of {counted(len(bucket.rows), 'row')}: {sessions}, {counted(bucket.num_pads, 'pad')}"
    rows, said = [[label("row", faint=True), *map(Cell, COLUMNS)]], [title]
    for number, row in enumerate(bucket.rows):
        where = f"{'spare block' if row.block == bucket.spare else 'block'} #{row.block}, slot {row.slot}"
        texts = [str(row.token), str(row.position), str(row.live), where, "is read" if row.name else "is left"]
        colour = OWNER_COLOURS[number % len(OWNER_COLOURS)] if row.name else ""
        head = label(f"{number} {row.name or 'pad'}", colour, faint=not row.name)
        rows.append([head, *(Cell(text, USED if row.name else EMPTY, faint=not row.name) for text in texts)])
        said.append(f"row {number}, {row.name or 'pad'}: {', '.join(texts[1:])}")
    return draw_grids(title, [Grid(rows)], [], "; ".join(said))
