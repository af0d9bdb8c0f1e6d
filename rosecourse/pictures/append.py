"""Which row of the new keys goes to which slot of which block, drawn from the running engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from ..checks import require
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .grid import APART, SLOTS_DRAWN, Arrow, Cell, Grid, draw_grids, label
from .sheet import EMPTY, FAINT_INK, INK, USED, Picture, counted
from .snapshot import BlockState, Snapshot, take_snapshot


def rows_to_blocks(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    batch_idx: Sequence[int],
    block_idx: Sequence[int],
    positions: Sequence[int],
    layer_idx: int = 0,
) -> Picture:
    """The rows of key_new, the blocks of one layer, and an arrow from each row to the block that it is written to.

    tables: for each row of key_new, in order, a name and the session's `block_ids_per_layer`. For each i, row
    batch_idx[i] goes to slot positions[i] of the block with index block_idx[i]; a row that is not in batch_idx is drawn
    without an arrow. Slots that hold a token already are filled. Draw it before the step writes.

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for no tables, for lists of
    different lengths, for a row, a block or a slot that is not there, and for blocks of more than 16 slots.
    """
    now = take_snapshot(kv, tables, layer_idx)
    _require_writes(now, batch_idx, block_idx, positions)
    blocks = [state for state in now.blocks if state.names]
    at = {state.block_index: row for row, state in enumerate(blocks, start=1)}
    row_of, slot_of = dict(zip(block_idx, batch_idx, strict=True)), dict(zip(block_idx, positions, strict=True))
    heads = [label("rows of key_new", faint=True), APART, label("block", faint=True)]
    rows: list[list[Cell | None]] = [[*heads, *(Cell(str(slot), faint=True) for slot in range(now.block_size))]]
    for number, (table, state) in enumerate(zip_longest(now.tables, blocks)):
        said = "" if number in batch_idx else ": not here"
        left = label(f"[{number}] {table[0]}{said}", now.colour(table[0]), faint=bool(said)) if table else None
        right = _strip(now, state, row_of, slot_of) if state else []
        rows.append([left, None, *right])
    arrows = [Arrow((1 + row, 0), (at[block], 2)) for row, block in zip(batch_idx, block_idx, strict=True)]
    names = [name for name, _ in now.tables]
    written = f"{len(batch_idx)} of {counted(len(names), 'row')} of key_new"
    said = "; ".join(
        f"row {row} ({names[row]}) to slot {slot} of block #{block}"
        for row, block, slot in zip(batch_idx, block_idx, positions, strict=True)
    )
    legend = [(FAINT_INK, "holds a token"), ("outline", "written now")]
    told = f"{written} are written in layer {layer_idx}: {said}"
    return draw_grids(f"{written}, layer {layer_idx}", [Grid(rows, arrows)], legend, told)


def _strip(now: Snapshot, state: BlockState, row_of: Mapping[int, int], slot_of: Mapping[int, int]) -> list[Cell]:
    """A block: its number, its slots, and whose it is, such as "A, 1 other" that has no row here."""
    cells = [label(f"#{state.block_index}")]
    for slot in range(now.block_size):
        written = slot == slot_of.get(state.block_index)
        fill = USED if written else now.colour(state.names[0]) if slot < state.length else EMPTY
        cells.append(Cell(str(row_of[state.block_index]) if written else "", fill, INK if written else ""))
    others = [counted(state.num_others, "other")] if state.num_others else []
    return [*cells, label(", ".join([*state.names, *others]), faint=state.block_index not in row_of)]


def _require_writes(
    now: Snapshot, batch_idx: Sequence[int], block_idx: Sequence[int], positions: Sequence[int]
) -> None:
    size, num_rows = now.block_size, len(now.tables)
    require(num_rows > 0, "tables is empty: give the table of each row of key_new")
    require(size <= SLOTS_DRAWN, f"blocks have {size} slots: at most {SLOTS_DRAWN} can be drawn")
    told = f"{len(batch_idx)}, {len(block_idx)} and {len(positions)}"
    even = len(batch_idx) == len(block_idx) == len(positions)
    require(even, f"batch_idx, block_idx and positions have {told} numbers: give as many of each")
    shown = {index for _, indices in now.tables for index in indices}
    for row, block, slot in zip(batch_idx, block_idx, positions, strict=True):
        require(0 <= row < num_rows, f"batch_idx has row {row}: tables has {counted(num_rows, 'row')}")
        require(block in shown, f"block_idx has block {block}, which none of the tables shows")
        require(0 <= slot < size, f"positions has slot {slot}: a block has slots 0 to {size - 1}")
    once = len(set(batch_idx)) == len(batch_idx) and len(set(block_idx)) == len(block_idx)
    require(once, "a row or a block is given twice: each row has one token, and goes to a block of its own")
