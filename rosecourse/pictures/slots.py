"""How a block table and a position name a slot, drawn from the running engine (one table for all layers)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from ..checks import require
from ..errors import BlockError
from ..kv.blocks import BlockTable, KVBlockManager
from .grid import APART, SLOTS_DRAWN, Arrow, Cell, Grid, draw_grids, label
from .sheet import EMPTY, FAINT_INK, INK, OWNER_COLOURS, USED, WRONG, Picture, counted, plain

LEGEND = [(FAINT_INK, "holds a token"), ("outline", "chosen by the position")]


def live_tables(kv: KVBlockManager, tables: Mapping[str, BlockTable], most_slots: int) -> dict[str, BlockTable]:
    """The tables by names that can be drawn.

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for no tables and for blocks
    of too many slots.
    """
    require(len(tables) > 0, "tables is empty: give the table of each session")
    require(kv.block_size <= most_slots, f"blocks have {kv.block_size} slots: at most {most_slots} can be drawn")
    for name, table in tables.items():
        if not isinstance(table, BlockTable) or table.freed or table.cache is not kv.ref:
            raise BlockError(f"the table of {plain(name)!r} is not one of this cache: give a live session's table")
    return {plain(name): table for name, table in tables.items()}


def _heads(entries: int, size: int) -> list[Cell | None]:
    """Above the entries of the tables, and above the slots of the blocks."""
    heads = [label("position", faint=True), *(Cell(f"[{entry}]", faint=True) for entry in range(entries)), APART]
    return [*heads, label("block", faint=True), *(Cell(str(slot), faint=True) for slot in range(size))]


def slots_by_table(kv: KVBlockManager, tables: Mapping[str, BlockTable]) -> Picture:
    """For each session its position, its row of the block tables as the device has it, and an arrow to its block.

    tables: name -> `session.table`. The entry that the position chooses is outlined, and so is the slot; slots that
    hold a token are filled. Past its end a row shows 0: an arrow from there has a colour of its own. Draw it before the
    step writes: after `place` or, to see what it is for, before. Raises what `live_tables` raises.
    """
    named = live_tables(kv, tables, SLOTS_DRAWN)
    size, colours = kv.block_size, {name: OWNER_COLOURS[n % len(OWNER_COLOURS)] for n, name in enumerate(named)}
    aims, said = {}, []  # name -> entry, block, slot, and the colour of its outlines
    for name, table in named.items():
        entry, slot = divmod(table.num_tokens, size)
        placed = entry < len(table)
        block = table[entry] if placed else 0
        aims[name] = (entry, block, slot, INK if placed else WRONG)
        past = "" if placed else ", past the end of its table"
        said.append(f"{name} at position {table.num_tokens} reads entry {entry}{past}: slot {slot} of block {block}")
    entries = max(max(len(named[name]), entry + 1) for name, (entry, *_) in aims.items())
    blocks = sorted({block for table in named.values() for block in table} | {block for _, block, *_ in aims.values()})

    def session(name: str) -> list[Cell]:
        chosen, _, _, mark = aims[name]
        row = [label(f"{name}: {named[name].num_tokens}", swatch=colours[name])]
        for entry, block in zip_longest(range(entries), named[name]):
            there = block is not None
            text, fill, outline = str(block if there else 0), USED if there else EMPTY, mark if entry == chosen else ""
            row.append(Cell(text, fill, outline, faint=not there))
        return row

    def strip(block: int) -> list[Cell]:
        owners = [name for name, table in named.items() if block in table]
        filled = max((named[name].num_tokens - named[name].index(block) * size for name in owners), default=0)
        row = [label(f"#{block}")]
        for slot in range(size):
            writers = [name for name, (_, b, s, _) in aims.items() if (b, s) == (block, slot)]
            text = f"×{len(writers)}" if len(writers) > 1 else "".join(writers)
            fill = USED if writers else colours[owners[0]] if slot < filled else EMPTY
            row.append(Cell(text, fill, aims[writers[0]][3] if writers else ""))
        return [*row, label(", ".join(owners) or "another's", faint=not owners)]

    rows: list[list[Cell | None]] = [_heads(entries, size)]
    for name_or_not, block in zip_longest(named, blocks):
        left = session(name_or_not) if name_or_not else [None] * (entries + 1)
        rows.append([*left, None, *(strip(block) if block is not None else ())])
    arrows = [
        Arrow((row, entries), (1 + blocks.index(block), entries + 2), mark)
        for row, (_, block, _, mark) in enumerate(aims.values(), start=1)
    ]
    missing = any(mark == WRONG for *_, mark in aims.values())
    legend = [*LEGEND, *([(WRONG, "no block placed: 0 is read")] if missing else [])]
    heading = f"{counted(len(named), 'session')}, each with its row of the table; blocks of {size} slots, every layer"
    return draw_grids(heading, [Grid(rows, arrows)], legend, "; ".join(said))
