"""Which slot a token goes to, drawn from the running engine: by rows and by block tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from ..kv.blocks import BlockTable, KVBlockManager
from ..lessons import l035_blocks
from .blocks import BlockState, take_snapshot
from .colours import EMPTY, FAINT_INK, INK, OWNER_COLOURS, USED, WRONG
from .grid import Arrow, Cell, Grid, beside, draw_grids, heads, label
from .sheet import Picture, counted

HOLDS = (FAINT_INK, "holds a token")


def rows_to_blocks(
    kv: l035_blocks.KVBlockManager,
    tables: Mapping[str, l035_blocks.BlockIdsPerLayer],
    batch_idx: Sequence[int],
    block_idx: Sequence[int],
    positions: Sequence[int],
) -> Picture:
    """The rows of key_new, the blocks of layer 0, and an arrow from each row to the block that it is written to.

    tables: for each row of key_new, in order, a name and the session's `block_ids_per_layer`. For each i, row
    batch_idx[i] goes to slot positions[i] of the block with index block_idx[i]; a row that is not in batch_idx is drawn
    without an arrow. Slots that hold a token already are filled. Draw it before the step writes. Raises `BlockError`
    for a table that is freed or not of this cache.
    """
    now = take_snapshot(kv, tables, 0)
    writes = {block: (row, slot) for row, block, slot in zip(batch_idx, block_idx, positions, strict=True)}
    blocks, names = [state for state in now.blocks if state.names], list(now.tables)

    def strip(state: BlockState) -> list[Cell]:
        row, written = writes.get(state.block_index, (None, None))
        fills = [now.colour(state.names[0]) if slot < state.length else EMPTY for slot in range(now.block_size)]
        cells = [Cell(str(row), USED, INK) if slot == written else Cell("", fill) for slot, fill in enumerate(fills)]
        others = [counted(n, "other") for n in [state.owners - len(state.names)] if n]  # that have no row here
        return [label(f"#{state.block_index}"), *cells, label(", ".join([*state.names, *others]), faint=row is None)]

    left = [[label("rows of key_new", faint=True)]]
    for number, name in enumerate(names):
        out = number not in batch_idx
        left.append([label(f"[{number}] {name}{': not in this write' * out}", now.colour(name), faint=out)])
    right = [[label("block", faint=True), *heads(range(now.block_size))], *map(strip, blocks)]
    lines = {state.block_index: line for line, state in enumerate(blocks, start=1)}
    arrows = [Arrow((1 + row, 0), (lines[block], 2)) for block, (row, _) in writes.items()]
    written = f"{len(batch_idx)} of {counted(len(names), 'row')} of key_new"
    said = [f"row {row} ({names[row]}) to slot {slot} of block #{block}" for block, (row, slot) in writes.items()]
    legend = [HOLDS, ("outline", "written now")]
    told = f"{written} are written in layer 0: {'; '.join(said)}"
    return draw_grids(f"{written}, layer 0", [Grid(beside(left, right), arrows)], legend, told)


def slots_by_table(kv: KVBlockManager, tables: Mapping[str, BlockTable]) -> Picture:
    """For each session its position, its row of the block tables as the device has it, and an arrow to its block.

    tables: name -> `session.table`, of live sessions. The entry that the position chooses is outlined, and so is the
    slot; slots that hold a token are filled. Past its end a row shows 0: an arrow from there has a colour of its own.
    Draw it before the step writes: after `place` or, to see what it is for, before.
    """
    size, colours = kv.block_size, dict(zip(tables, cycle(OWNER_COLOURS), strict=False))
    aims = {name: _aim(table, size) for name, table in tables.items()}
    entries = max(max(len(tables[name]), entry + 1) for name, (entry, *_) in aims.items())
    blocks = sorted({block for table in tables.values() for block in table} | {aim[1] for aim in aims.values()})

    def session(name: str) -> list[Cell]:
        (chosen, _, _, mark), table = aims[name], tables[name]
        cells = [Cell(str(block), USED, mark if n == chosen else "") for n, block in enumerate(table)]
        past = [Cell("0", EMPTY, mark if n == chosen else "", faint=True) for n in range(len(table), entries)]
        return [label(f"{name}: {table.num_tokens}", colours[name]), *cells, *past]

    def strip(block: int) -> list[Cell]:
        owners = [name for name, table in tables.items() if block in table]
        filled = max((tables[name].num_tokens - tables[name].index(block) * size for name in owners), default=0)
        cells = [Cell("", colours[owners[0]] if slot < filled else EMPTY) for slot in range(size)]
        for name, (_, aimed, slot, mark) in aims.items():
            if aimed == block:
                writers = [other for other, (_, b, s, _) in aims.items() if (b, s) == (block, slot)]
                cells[slot] = Cell(f"×{len(writers)}" if len(writers) > 1 else name, USED, mark)
        return [label(f"#{block}"), *cells, label(", ".join(owners), faint=not owners)]

    left = [[label("position", faint=True), *heads([f"[{n}]" for n in range(entries)])], *map(session, tables)]
    right = [[label("block", faint=True), *heads(range(size))], *map(strip, blocks)]
    ends = enumerate(aims.values(), start=1)
    arrows = [Arrow((row, entries), (1 + blocks.index(block), entries + 2), mark) for row, (_, block, _, mark) in ends]
    missing = any(mark == WRONG for *_, mark in aims.values())
    legend = [
        HOLDS,
        ("outline", "chosen by the position"),
        *([(WRONG, "no block placed: 0 is read")] if missing else []),
    ]
    said = [
        f"{name} at position {tables[name].num_tokens} reads entry {entry}: slot {slot} of block {block}"
        for name, (entry, block, slot, _) in aims.items()
    ]
    heading = f"{counted(len(tables), 'session')}, each with its row of the table; blocks of {size} slots, every layer"
    return draw_grids(heading, [Grid(beside(left, right), arrows)], legend, "; ".join(said))


def _aim(table: BlockTable, size: int) -> tuple[int, int, int, str]:
    """Where a session writes next: entry of its table, block, slot, and the colour of its outlines."""
    entry, slot = divmod(table.num_tokens, size)
    return (entry, table[entry], slot, INK) if entry < len(table) else (entry, 0, slot, WRONG)
