"""Pictures of the paged KV cache, drawn from the running engine: they cannot disagree with it.

A picture is SVG text, the same bytes for the same state of the engine. What the engine does later does not change it.

    before = block_map(engine.kv, {"A": a.block_ids_per_layer})
    engine.take_tokens([a], engine.decode_step_sessions([a]))
    after = block_map(engine.kv, {"A": a.block_ids_per_layer}, since=before)
    moments(("before the step", before), ("after", after))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..checks import require
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .grid import PAD, Bar, Cell, Grid, draw_grids, label
from .sheet import EMPTY, INK, OTHER_COLOUR, SHARED, TEXT, USED, Picture, counted, fit, moments, text_width
from .snapshot import BlockState, Snapshot, take_snapshot

__all__ = ["block_map", "moments", "table_map"]

CELL, MAX_COLUMNS = 98, 8  # the width of a block, and blocks in a row
ROOM = CELL - 2 * PAD  # for a text
BANDS = 4  # most colours in a block with many owners; its text says how many there are
Notes = dict[int, list[str]]  # block index -> what has changed; of the blocks with a thick outline


def block_map(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int = 0,
    *,
    highlight: Collection[int] = (),
    since: Picture | None = None,
    columns: int = MAX_COLUMNS,
) -> Picture:
    """One layer of the pool: each block with its number, its filled slots, its owners and their count.

    tables: name -> `session.block_ids_per_layer`; the blocks of sessions that are not in it are drawn as another's.
    highlight: block ids, as the tables show them, to draw with a thick outline. since: an earlier picture of the same
    layer; what has changed since gets a thick outline and says how. columns: blocks in a row, 2 to 8. Raises
    `BlockError` for a table that is freed or not of this cache, and `ConfigError` for a layer, a block, a picture or a
    number of columns that cannot be.
    """
    now, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    grids = []
    for row in _rows(now, notes, columns):
        cells = [_cell(now, state, notes.get(state.block_index)) for state in row]
        if len(row) > columns:
            cells = [label(f"{len(row)} free blocks, #{row[0].block_index} to #{row[-1].block_index}", faint=True)]
        grids.append(Grid([cells], width=CELL if len(row) <= columns else None))
    sessions = [(now.colour(name), _tokens_in(now, name, indices)) for name, indices in now.tables]
    outline = "marked" if since is None else "the block has changed"
    legend = sessions + _legend(now.blocks, outline if notes else "")
    return draw_grids(_title(now), grids, legend, f"{_title(now)}. {_said(now)}", now)


def table_map(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int = 0,
    *,
    highlight: Collection[int] = (),
    since: Picture | None = None,
    columns: int = MAX_COLUMNS,
) -> Picture:
    """The block table of each session: for each logical block the physical one, with its fill and its owners.

    Arguments and errors are those of `block_map`; an empty `tables` is a `ConfigError` too. With `since`, an entry has
    a thick outline where it shows another block than before, which it names, or where its block has changed.
    """
    now, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    require(bool(now.tables), "tables is empty: give at least one session's block_ids_per_layer")
    then = dict(since.snapshot.tables) if since and isinstance(since.snapshot, Snapshot) else {}
    grids, marked = [], False
    for name, indices in now.tables:
        grids.append(Grid([[label(_tokens_in(now, name, indices), swatch=now.colour(name))]]))
        cells, before = [], then.get(name, ())
        for index, was in zip(indices, before + indices[len(before) :], strict=False):
            moved = [f"was #{was}"] if was != index else []
            changed = [*moved, *notes.get(index, [])] if moved or index in notes else None
            cells.append(_cell(now, now.blocks[index], changed))
            marked = marked or changed is not None
        for first in range(0, len(cells), columns):
            row = cells[first : first + columns]
            heads = [Cell(f"logical {logical} ↓") for logical in range(first, first + len(row))]
            grids.append(Grid([heads, row], width=CELL))
    outline = "marked" if since is None else "entry or block has changed"
    legend = _legend([now.blocks[index] for _, indices in now.tables for index in indices], outline if marked else "")
    heading = f"Layer {layer_idx}: logical → physical{_id_rule(now)}"
    return draw_grids(heading, grids, legend, f"Block tables of layer {layer_idx}. {_said(now)}", now)


def _snapshot_and_notes(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int,
    highlight: Collection[int],
    since: Picture | None,
    columns: int,
) -> tuple[Snapshot, Notes]:
    """What both pictures start from. Raises `ConfigError` for arguments that cannot be."""
    told = f"columns is {columns!r}: give a number from 2 to {MAX_COLUMNS}"
    require(type(columns) is int and 2 <= columns <= MAX_COLUMNS, told)
    then = getattr(since, "snapshot", None)
    told = f"since is {since!s:.60}: give an earlier picture by block_map or table_map"
    require(since is None or isinstance(then, Snapshot), told)
    now = take_snapshot(kv, tables, layer_idx, then.colour_order if then else ())
    notes: Notes = {}
    if then:
        told = f"since shows {_layer(then)}, not {_layer(now)}: give a picture of the same layer and cache"
        require(_layer(then) == _layer(now), told)
        all_changes = map(_changes, then.blocks, now.blocks)
        notes = {index: changes for index, changes in enumerate(all_changes) if changes}
    ids = isinstance(highlight, Collection) and all(isinstance(block_id, int) for block_id in highlight)
    require(ids, f"highlight is {highlight!s:.60}: give a set of block ids, as the tables show them")
    first, last = layer_idx * kv.num_blocks, (layer_idx + 1) * kv.num_blocks - 1
    for block_id in sorted(highlight):
        told = f"highlight shows block {block_id}: layer {layer_idx} has blocks {first} to {last}"
        require(first <= block_id <= last, told)
        notes.setdefault(block_id - first, [])
    return now, notes


def _layer(snapshot: Snapshot) -> str:
    return f"layer {snapshot.layer_idx} with {len(snapshot.blocks)} blocks of {snapshot.block_size} slots"


def _changes(then: BlockState, now: BlockState) -> list[str]:
    """What has happened to a block, in words of a cell's width."""
    if then.free != now.free:
        return ["freed" if now.free else "new"]
    if now.start != then.start or now.length < then.length:  # freed and taken again: a block only fills up
        return ["used anew"]
    notes = []
    if now.length > then.length:
        notes.append("+" + counted(now.length - then.length, "token"))
    if now.owners != then.owners:
        notes.append(f"owners {then.owners}→{now.owners}")
    elif then.names and now.names and then.names != now.names:
        notes.append(f"was {then.names[0]}'s")
    if now.cached != then.cached:
        notes.append("now cached" if now.cached else "not cached")
    return notes


def _rows(now: Snapshot, notes: Notes, columns: int) -> list[tuple[BlockState, ...]]:
    """The blocks in rows; neighbouring rows of free blocks are one long row, which is not drawn but counted.

    The first row is drawn in any case, to show what a block looks like, where nothing is in use.
    """
    rows: list[tuple[BlockState, ...]] = []
    used = {state.block_index for state in now.blocks if not state.free} | set(notes)
    for begin in range(0, len(now.blocks), columns):
        row = now.blocks[begin : begin + columns]
        both_free = rows and used.isdisjoint(state.block_index for state in rows[-1] + row)
        if both_free and (used or len(rows) > 1):
            rows[-1] += row
        else:
            rows.append(row)
    return rows


def _cell(now: Snapshot, state: BlockState, notes: Sequence[str] | None) -> Cell:
    """A block, with a thick outline where there are notes, be they none."""
    colours = [now.colour(name) for name in state.names] + [OTHER_COLOUR] * (state.num_others > 0)
    full = f"{state.length} of {now.block_size}"
    owners = counted(state.owners, "owner") if state.owners else "only cached"
    cached = ["cached"] if state.cached and state.owners else []
    lines = [f"#{state.block_index}", full, _owner_names(state), owners, *cached]
    names = f" ({', '.join(state.names)})" if state.names else ""
    title = [f"block #{state.block_index}: {full} slots, from position {state.start}", owners + names, *cached]
    if state.free:
        lines, title = [f"#{state.block_index}", "free"], [f"block #{state.block_index}: free"]
    return Cell(
        "\n".join([*lines, *(notes or ())]),
        fill=USED if state.owners else EMPTY,
        mark="" if notes is None else INK,
        faint=not state.owners,
        bar=None if state.free else Bar(state.length, now.block_size, colours[:BANDS] or [SHARED]),
        title="; ".join([*title, *(notes or ())]),
    )


def _owner_names(state: BlockState) -> str:
    """As many owners' names as fit into a cell, and how many more there are."""
    if not state.names:
        return "other" if state.owners else "no owner"
    for count in range(len(state.names), 0, -1):
        more = f" + {state.owners - count} more" if count < state.owners else ""
        text = " + ".join(state.names[:count]) + more
        if text_width(text, TEXT) <= ROOM:
            return text
    return fit(state.names[0], ROOM - text_width(more, TEXT), TEXT) + more


# -- words --------------------------------------------------------------------


def _title(now: Snapshot) -> str:
    held = sum(state.owners > 0 for state in now.blocks)
    free = sum(state.free for state in now.blocks)
    cached = len(now.blocks) - held - free
    counts = [f"{held} held", *([f"{cached} only cached"] if cached else []), f"{free} free"]
    size = f"{len(now.blocks)} blocks of {now.block_size} slots"
    return f"KV cache, layer {now.layer_idx}: {size}; {', '.join(counts)}{_id_rule(now)}"


def _id_rule(now: Snapshot) -> str:
    """How a block's id follows from its number: ids count through all layers, numbers start again in each."""
    first = now.layer_idx * len(now.blocks)
    return f" (block id = {first} + #)" if first else ""


def _said(now: Snapshot) -> str:
    words = [f"{name}: {now.num_tokens(indices)} tokens in blocks {list(indices)}" for name, indices in now.tables]
    return "; ".join(words)


def _tokens_in(now: Snapshot, name: str, indices: Sequence[int]) -> str:
    return f"{name}: {counted(now.num_tokens(indices), 'token')} in {counted(len(indices), 'block')}"


def _legend(blocks: Sequence[BlockState], outline: str) -> list[tuple[str, str]]:
    """What is not a session: other owners, cached blocks, and what the thick outline means."""
    others = [(OTHER_COLOUR, "“other”: a session without a name here")] if any(b.num_others for b in blocks) else []
    cached = [("", "“cached”: the prefix cache knows the block")] if any(b.cached for b in blocks) else []
    return [*others, *cached, *([("outline", outline)] if outline else [])]
