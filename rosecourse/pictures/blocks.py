"""Pictures of the paged KV cache, drawn from the running engine: they cannot disagree with it.

A picture is SVG text, the same bytes for the same state of the engine. What the engine does later does not change it.

    before = block_map(engine.kv, {"A": a.block_ids_per_layer})
    engine.take_tokens([a], engine.decode_step_sessions([a]))
    after = block_map(engine.kv, {"A": a.block_ids_per_layer}, since=before)
    moments(("before the step", before), ("after", after))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from ..errors import BlockError
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .colours import EMPTY, INK, OTHER_COLOUR, OWNER_COLOURS, SHARED, USED
from .grid import Bar, Cell, Grid, draw_grids, label
from .sheet import Picture, counted, moments

__all__ = ["block_map", "moments", "table_map"]

CELL, COLUMNS = 98, 8  # the width of a block, and blocks in a row
BANDS = 4  # most colours in a block with many owners; its text says how many there are
Notes = dict[int, list[str]]  # block index -> what has changed; of the blocks with a thick outline


# -- the cache at one moment ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block at one moment. names: of the owners that the picture knows, at most `owners` of them."""

    block_index: int
    start: int = 0
    length: int = 0
    owners: int = 0
    cached: bool = False
    names: tuple[str, ...] = ()

    @property
    def free(self) -> bool:
        return self.owners == 0 and not self.cached


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One layer of the pool at one moment. tables: each session's block indices, in the order of its tokens."""

    layer_idx: int
    block_size: int
    blocks: tuple[BlockState, ...]
    tables: Mapping[str, tuple[int, ...]]
    colour_order: tuple[str, ...]  # a session keeps its colour in later pictures, whoever comes and goes

    def colour(self, name: str) -> str:
        return OWNER_COLOURS[self.colour_order.index(name) % len(OWNER_COLOURS)]

    def tokens(self, name: str) -> str:
        """How much a session has in the cache, in words."""
        indices = self.tables[name]
        held = sum(self.blocks[index].length for index in indices)
        return f"{name}: {counted(held, 'token')} in {counted(len(indices), 'block')}"


def take_snapshot(
    kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], layer_idx: int, colour_order: tuple[str, ...] = ()
) -> Snapshot:
    """One layer of the pool as it is now. colour_order: the sessions that have a colour in an earlier picture.

    Raises `BlockError` for a table that is freed or not of this cache, and for one that is given twice.
    """
    rows = {name: _indices(kv, name, table, layer_idx) for name, table in tables.items()}
    blocks = tuple(_state(kv, layer_idx, index, rows) for index in range(kv.num_blocks))
    return Snapshot(layer_idx, kv.block_size, blocks, rows, tuple(dict.fromkeys([*colour_order, *rows])))


def _indices(kv: KVBlockManager, name: str, table: BlockIdsPerLayer, layer_idx: int) -> tuple[int, ...]:
    """The block indices that a table shows in one layer."""
    if table is None or getattr(table, "freed", False):
        raise BlockError(f"session {name!r} holds no blocks: it was freed, or never computed")
    if not isinstance(table, Sequence) or len(table) != kv.num_layers:
        raise BlockError(f"the table of {name!r} has no list for each layer: give its session.block_ids_per_layer")
    for block_id in table[layer_idx]:
        kv.info(block_id)  # which raises for a block that is not in use
        if block_id // kv.num_blocks != layer_idx:
            raise BlockError(f"the table of {name!r} shows block {block_id}, which is not of layer {layer_idx}")
    return tuple(map(kv.block_index, table[layer_idx]))


def _state(kv: KVBlockManager, layer_idx: int, index: int, rows: Mapping[str, Sequence[int]]) -> BlockState:
    try:
        info = kv.info(layer_idx * kv.num_blocks + index)
    except BlockError:
        return BlockState(index)
    names = tuple(name for name, indices in rows.items() if index in indices)
    if len(names) > info.owners:
        owners = counted(info.owners, "owner")
        raise BlockError(f"block #{index} of layer {layer_idx} has {owners}, and {', '.join(names)} show it")
    return BlockState(index, info.start, info.length, info.owners, info.cached, names)


# -- pictures -----------------------------------------------------------------


def block_map(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int = 0,
    *,
    highlight: Collection[int] = (),
    since: Picture | None = None,
    columns: int = COLUMNS,
) -> Picture:
    """One layer of the pool: each block with its number, its filled slots, its owners and their count.

    tables: name -> `session.block_ids_per_layer`; the blocks of sessions that are not in it are drawn as another's.
    highlight: block ids, as the tables show them, to draw with a thick outline. since: an earlier picture of the same
    layer; what has changed since gets a thick outline and says how. columns: blocks in a row, at most 8. Raises
    `BlockError` for a table that is freed or not of this cache.
    """
    now, notes = _now_and_notes(kv, tables, layer_idx, since)
    notes = {block_id % kv.num_blocks: [] for block_id in highlight} | notes
    grids, drawn = [], {state.block_index for state in now.blocks if not state.free} | set(notes)
    cut = [now.blocks[first : first + columns] for first in range(0, kv.num_blocks, columns)]
    for free, group in groupby(cut, key=lambda row: drawn.isdisjoint(state.block_index for state in row)):
        rows = list(group)
        if free and len(rows) > 1:
            first, last = rows[0][0].block_index, rows[-1][-1].block_index
            grids.append(Grid([[label(f"{last - first + 1} free blocks, #{first} to #{last}", faint=True)]]))
        else:
            blocks = [[_cell(now, state, notes.get(state.block_index)) for state in row] for row in rows]
            grids.append(Grid(blocks, width=CELL))
    sessions = [(now.colour(name), now.tokens(name)) for name in now.tables]
    outline = "marked" if since is None else "the block has changed"
    legend = sessions + _legend(now.blocks, outline if notes else "")
    return draw_grids(_title(now), grids, legend, f"{_title(now)}. {_said(now)}", now)


def table_map(kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], *, since: Picture | None = None) -> Picture:
    """The block table of each session in layer 0: for each logical block the physical one, its fill and its owners.

    Arguments and errors are those of `block_map`. With `since`, an entry has a thick outline where it shows another
    block than before, which it names, or where its block has changed.
    """
    now, notes = _now_and_notes(kv, tables, 0, since)
    then = cast(Snapshot, since.snapshot).tables if since else {}
    grids = []
    for name, indices in now.tables.items():
        grids.append(Grid([[label(now.tokens(name), now.colour(name))]]))
        cells, before = [], then.get(name, ())
        for index, was in zip(indices, before + indices[len(before) :], strict=False):
            changed = [*([f"was #{was}"] if was != index else []), *notes.get(index, [])]
            cells.append(_cell(now, now.blocks[index], changed or None))
        for first in range(0, len(cells), COLUMNS):
            row = cells[first : first + COLUMNS]
            grids.append(Grid([[Cell(f"logical {first + column} ↓") for column in range(len(row))], row], width=CELL))
    marked = any(cell and cell.mark for grid in grids for row in grid.rows for cell in row)
    shown = [now.blocks[index] for indices in now.tables.values() for index in indices]
    legend = _legend(shown, "entry or block has changed" if marked else "")
    return draw_grids("Layer 0: logical → physical", grids, legend, f"Block tables of layer 0. {_said(now)}", now)


def _now_and_notes(
    kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], layer_idx: int, since: Picture | None
) -> tuple[Snapshot, Notes]:
    """The cache as it is, and what has changed since an earlier picture."""
    if since is None:
        return take_snapshot(kv, tables, layer_idx), {}
    then = cast(Snapshot, since.snapshot)
    now = take_snapshot(kv, tables, layer_idx, then.colour_order)
    changes = {state.block_index: _changes(was, state) for was, state in zip(then.blocks, now.blocks, strict=True)}
    return now, {index: notes for index, notes in changes.items() if notes}


def _changes(then: BlockState, now: BlockState) -> list[str]:
    """What has happened to a block, in words of a cell's width."""
    if then.free != now.free:
        return ["freed" if now.free else "new"]
    if now.start != then.start or now.length < then.length:  # freed and taken again: a block only fills up
        return ["used again"]
    notes = []
    if now.length > then.length:
        notes.append("+" + counted(now.length - then.length, "token"))
    if now.owners != then.owners:
        notes.append(f"owners {then.owners}→{now.owners}")
    elif then.names and now.names and not set(then.names) & set(now.names):
        notes.append(f"was {then.names[0]}'s")
    if now.cached != then.cached:
        notes.append("now cached" if now.cached else "not cached")
    return notes


def _cell(now: Snapshot, state: BlockState, notes: Sequence[str] | None) -> Cell:
    """A block, with a thick outline where there are notes, be they none."""
    number, mark = f"#{state.block_index}", "" if notes is None else INK
    if state.free:
        return Cell("\n".join([number, "free", *(notes or ())]), EMPTY, mark, True)
    full, others = f"{state.length} of {now.block_size}", state.owners - len(state.names)
    names = " + ".join([*state.names, *(["other"] if others == 1 else [f"{others} others"] if others else [])])
    colours = [now.colour(name) for name in state.names] + [OTHER_COLOUR] * bool(others)
    owners = counted(state.owners, "owner") if state.owners else "only cached"
    told = [*(["cached"] if state.cached and state.owners else []), *(notes or ())]
    return Cell(
        "\n".join([number, full, names or "no owner", owners, *told]),
        fill=USED if state.owners else EMPTY,
        mark=mark,
        faint=not state.owners,
        bar=Bar(state.length, now.block_size, colours[:BANDS] or [SHARED]),
    )


# -- words --------------------------------------------------------------------


def _title(now: Snapshot) -> str:
    held = sum(state.owners > 0 for state in now.blocks)
    free = sum(state.free for state in now.blocks)
    cached = len(now.blocks) - held - free
    counts = [f"{held} held", *([f"{cached} only cached"] if cached else []), f"{free} free"]
    size = f"{len(now.blocks)} blocks of {now.block_size} slots"
    first = now.layer_idx * len(now.blocks)  # ids count through all layers, numbers start again in each
    rule = f" (block id = {first} + #)" if first else ""
    return f"KV cache, layer {now.layer_idx}: {size}; {', '.join(counts)}{rule}"


def _said(now: Snapshot) -> str:
    return "; ".join(f"{now.tokens(name)} {list(indices)}" for name, indices in now.tables.items())


def _legend(blocks: Sequence[BlockState], outline: str) -> list[tuple[str, str]]:
    """What is not a session: other owners, cached blocks, and what the thick outline means."""
    others = any(block.owners > len(block.names) for block in blocks)
    told = [(OTHER_COLOUR, "“other”: a session without a name here")] * others
    told += [("", "“cached”: the prefix cache knows the block")] * any(block.cached for block in blocks)
    return told + [("outline", outline)] * bool(outline)
