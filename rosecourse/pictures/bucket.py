"""The bucket of a decode step: which rows a graph computes, who sits there, and where each of them writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..decode.rows import LIVE, POSITION, TOKEN, Rows
from ..errors import ConfigError
from ..kv.blocks import BlockTable
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

# Each column: its name, its width, and whether it is a row's own number.
COLUMNS = (("token", 60), ("position", 70), ("live", 50), ("writes to", 170), ("its outcome", 130))
NAME_WIDTH, HEIGHT = 120, 24
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
    if not len(rows.tables) <= size <= min(MOST_ROWS, rows.max_rows):
        raise ConfigError(f"a bucket of {size} rows for {len(rows.tables)} sessions: at most {MOST_ROWS} can be drawn")
    named = {id(table): plain(name) for name, table in tables.items()}
    missing = [row for row, table in enumerate(rows.tables) if id(table) not in named]
    if missing:
        raise ConfigError(f"row {missing[0]} holds a session without a name: give its table")
    fields, block_tables, block_size = rows.fields.tolist(), rows.block_tables.tolist(), rows.kv.block_size
    seen = []
    for row in range(size):
        position = fields[POSITION][row]
        name = named[id(rows.tables[row])] if row < len(rows.tables) else ""
        block = block_tables[row][position // block_size]
        seen.append(SeenRow(name, fields[TOKEN][row], position, fields[LIVE][row], block, position % block_size))
    return SeenBucket(tuple(seen), rows.kv.num_blocks)


def bucket_map(bucket: SeenBucket) -> Picture:
    """Each row with what the graph reads of it and where it writes; pads are pale."""
    sheet = Sheet(NAME_WIDTH + sum(width for _, width in COLUMNS))
    sheet.heading(_title(bucket))
    x = MARGIN + NAME_WIDTH
    for name, width in COLUMNS:
        draw_text(sheet.root, (x + width / 2, sheet.y + TEXT), name, anchor="middle", weight="bold")
        x += width
    sheet.y += LINE_HEIGHT + 4
    for number, row in enumerate(bucket.rows):
        _draw_row(sheet, number, row, bucket.spare)
        sheet.y += HEIGHT + 2
    sheet.y += GAP
    return sheet.picture(_description(bucket), None)


def _draw_row(sheet: Sheet, number: int, row: SeenRow, spare: int) -> None:
    y, ink = sheet.y, INK if row.name else FAINT_INK
    group = draw_shape(sheet.root, "g", class_="row", data_row=number, data_session=row.name)
    draw_text(group, (MARGIN, y + 16), str(number), colour=ink)
    if row.name:
        colour = OWNER_COLOURS[number % len(OWNER_COLOURS)]
        draw_shape(group, "rect", x=MARGIN + 22, y=y + 6, width=12, height=12, fill=colour)
    said = fit(row.name, NAME_WIDTH - 22 - SWATCH, TEXT) if row.name else "pad"
    draw_text(group, (MARGIN + 22 + SWATCH, y + 16), said, colour=ink, weight="bold" if row.name else "normal")
    x = MARGIN + NAME_WIDTH
    for (_, width), text in zip(COLUMNS, _texts(row, spare), strict=True):
        box = {"x": x, "y": y, "width": width, "height": HEIGHT}
        draw_shape(group, "rect", class_="cell", **box, fill="white" if row.name else EMPTY, stroke=LINE)
        draw_text(group, (x + width / 2, y + 16), text, colour=ink, anchor="middle")
        x += width


def _texts(row: SeenRow, spare: int) -> tuple[str, ...]:
    where = f"{'spare block' if row.block == spare else 'block'} #{row.block}, slot {row.slot}"
    return str(row.token), str(row.position), str(row.live), where, "is read" if row.name else "is left"


def _title(bucket: SeenBucket) -> str:
    sessions = counted(len(bucket.rows) - bucket.num_pads, "session")
    return f"A bucket of {counted(len(bucket.rows), 'row')}: {sessions}, {counted(bucket.num_pads, 'pad')}"


def _description(bucket: SeenBucket) -> str:
    rows = (
        f"row {number}, {row.name or 'pad'}: {', '.join(_texts(row, bucket.spare)[1:])}"
        for number, row in enumerate(bucket.rows)
    )
    return "; ".join([_title(bucket), *rows])
