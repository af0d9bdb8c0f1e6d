"""Pictures of the paged KV cache, drawn from the running engine: they cannot disagree with it.

A picture is SVG text. The same state of the engine gives the same bytes on every machine, because there are no dates,
no random ids and no sizes that depend on a font. It is a snapshot: what the engine does later does not change it.

    before = block_map(engine.kv, {"A": a.block_ids_per_layer})
    engine.take_tokens([a], engine.decode_step_sessions([a]))
    after = block_map(engine.kv, {"A": a.block_ids_per_layer}, since=before)
    moments(("before the step", before), ("after", after))
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..errors import BlockError, ConfigError
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .sheet import (
    BOLD,
    CELL,
    FAINT_INK,
    GAP,
    LINE_HEIGHT,
    MARGIN,
    MAX_COLUMNS,
    OTHER_COLOUR,
    TEXT,
    WIDEST_HEADING,
    WIDTH,
    BlockState,
    Picture,
    Sheet,
    Snapshot,
    cell_height,
    cells_width,
    counted,
    draw_block,
    draw_table,
    draw_text,
    embed,
    plain,
    table_heading_width,
    tokens_in,
    wrapped,
)


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
    snapshot, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    inner = cells_width(max(2, min(columns, len(snapshot.blocks))))
    sheet = Sheet(inner)
    sheet.heading(_title(snapshot))
    sheet.legend(_legend(snapshot, bool(notes), since is not None))
    height = cell_height((state, notes.get(state.block_index, [])) for state in snapshot.blocks)
    for row in _rows(snapshot, notes, columns):
        if len(row) > columns:
            sheet.line(f"{len(row)} free blocks, #{row[0].block_index} to #{row[-1].block_index}", FAINT_INK)
            sheet.y += GAP
            continue
        for column, state in enumerate(row):
            place = (MARGIN + column * (CELL + GAP), sheet.y)
            words = notes.get(state.block_index, [])
            draw_block(sheet.root, place, height, state, snapshot, words, state.block_index in notes)
        sheet.y += height + GAP
    return sheet.picture(f"{_title(snapshot)}. {_count_sessions(snapshot)}", snapshot)


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
    snapshot, notes = _snapshot_and_notes(kv, tables, layer_idx, highlight, since, columns)
    if not snapshot.tables:
        raise ConfigError("tables is empty: give at least one session's block_ids_per_layer")
    entry_notes = _entry_notes(snapshot, notes, since)
    height = cell_height(
        (snapshot.blocks[index], entry_notes.get((name, logical), []))
        for name, indices in snapshot.tables
        for logical, index in enumerate(indices)
    )
    in_row = max(2, min(columns, max(len(indices) for _, indices in snapshot.tables)))
    strips = _strips_in_row(len(snapshot.tables), in_row, columns)
    headings = [table_heading_width(name, indices, snapshot) for name, indices in snapshot.tables]
    strip = max(cells_width(in_row), min(max(headings), WIDEST_HEADING if strips == 1 else 0))
    sheet = Sheet(strips * (strip + 4 * GAP) - 4 * GAP)
    sheet.heading(f"Layer {layer_idx}: logical → physical{_id_rule(snapshot)}")
    for first in range(0, len(snapshot.tables), strips):
        bottom = sheet.y
        for column, (name, indices) in enumerate(snapshot.tables[first : first + strips]):
            place = (MARGIN + column * (strip + 4 * GAP), sheet.y)
            size = (in_row, height, strip)
            bottom = max(bottom, draw_table(sheet.root, place, size, name, indices, snapshot, entry_notes))
        sheet.y = bottom + GAP
    outline = "marked" if since is None else "entry or block has changed"
    sheet.legend(_marks(bool(entry_notes), outline, _in_tables(snapshot)))
    return sheet.picture(f"Block tables of layer {layer_idx}. {_count_sessions(snapshot)}", snapshot)


def moments(*captioned: tuple[str, Picture]) -> Picture:
    """Several pictures as one, each under its caption: side by side where they fit, else one above the other.

    Each argument is a pair (caption, picture). Raises `ConfigError` for none at all and for what is not such a pair.
    """
    if not captioned:
        raise ConfigError('no moments are given: give pairs such as ("before the step", picture)')
    for pair in captioned:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Picture)):
            raise ConfigError(f"{plain(pair):.60} is not a moment: give a pair (caption, picture)")
    pictures = [picture for _, picture in captioned]
    beside = sum(p.width for p in pictures) + GAP * (len(pictures) - 1) <= WIDTH
    width = sum(p.width for p in pictures) + GAP * (len(pictures) - 1) if beside else max(p.width for p in pictures)
    sheet = Sheet(width - 2 * MARGIN)
    captions = [wrapped(plain(caption), p.width - 2 * MARGIN, (TEXT + 3) * BOLD) for caption, p in captioned]
    x, top, lines = 0, sheet.y, max(map(len, captions))
    for caption, picture in zip(captions, pictures, strict=True):
        y = top if beside else sheet.y
        for number, line in enumerate(caption):
            at = (x + MARGIN, y + TEXT + number * (LINE_HEIGHT + 3))
            draw_text(sheet.root, at, line, size=TEXT + 3, weight="bold")
        y += (lines if beside else len(caption)) * (LINE_HEIGHT + 3)
        embed(sheet.root, picture, x, y)
        sheet.y = max(sheet.y, y + picture.height + GAP)
        x += picture.width + GAP if beside else 0
    return sheet.picture(f"{len(pictures)} moments: {'; '.join(plain(caption) for caption, _ in captioned)}", None)


# -- from the engine to a snapshot --------------------------------------------------------------------


def _snapshot_and_notes(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    layer_idx: int,
    highlight: Collection[int],
    since: Picture | None,
    columns: int,
) -> tuple[Snapshot, dict[int, list[str]]]:
    """What both pictures start from: the state, and for each block with a thick outline its changes, in words."""
    if type(columns) is not int or not 2 <= columns <= MAX_COLUMNS:
        raise ConfigError(f"columns is {columns!r}: give a number from 2 to {MAX_COLUMNS}")
    _require_layer(kv, layer_idx)
    earlier = _earlier(kv, layer_idx, since)
    snapshot = take_snapshot(kv, tables, layer_idx, earlier.colour_order if earlier else ())
    notes: dict[int, list[str]] = {}
    if earlier:
        all_changes = map(_changes, earlier.blocks, snapshot.blocks)
        notes = {index: changes for index, changes in enumerate(all_changes) if changes}
    for block_index in _highlighted(kv, layer_idx, highlight):
        notes.setdefault(block_index, [])
    return snapshot, notes


def _highlighted(kv: KVBlockManager, layer_idx: int, highlight: Collection[int]) -> list[int]:
    """The block indices of the block ids to highlight."""
    if not isinstance(highlight, Collection) or not all(isinstance(block_id, int) for block_id in highlight):
        raise ConfigError(f"highlight is {highlight!s:.60}: give a set of block ids, as the tables show them")
    first, last = layer_idx * kv.num_blocks, (layer_idx + 1) * kv.num_blocks - 1
    for block_id in sorted(highlight):
        if not first <= block_id <= last:
            raise ConfigError(f"highlight shows block {block_id}: layer {layer_idx} has blocks {first} to {last}")
    return [block_id - first for block_id in highlight]


def _earlier(kv: KVBlockManager, layer_idx: int, since: Picture | None) -> Snapshot | None:
    if since is None:
        return None
    then = since.snapshot if isinstance(since, Picture) else None
    if then is None:
        raise ConfigError(f"since is {since!s:.60}: give an earlier picture by block_map or table_map")
    if (then.layer_idx, then.block_size, len(then.blocks)) != (layer_idx, kv.block_size, kv.num_blocks):
        raise ConfigError(
            f"since shows layer {then.layer_idx} with {len(then.blocks)} blocks of {then.block_size} slots, not layer "
            f"{layer_idx} with {kv.num_blocks} of {kv.block_size}: give a picture of the same layer and cache"
        )
    return then


def _require_layer(kv: KVBlockManager, layer_idx: int) -> None:
    if type(layer_idx) is not int or not 0 <= layer_idx < kv.num_layers:
        raise ConfigError(f"layer_idx is {layer_idx!r}: the cache has layers 0 to {kv.num_layers - 1}")


def take_snapshot(
    kv: KVBlockManager, tables: Mapping[str, BlockIdsPerLayer], layer_idx: int, colour_order: tuple[str, ...] = ()
) -> Snapshot:
    """One layer of the pool as it is now. colour_order: the sessions that have a colour in an earlier picture.

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for a layer that cannot be.
    """
    _require_layer(kv, layer_idx)
    if not isinstance(tables, Mapping):
        raise ConfigError('tables is not a mapping: give names and tables, such as {"A": session.block_ids_per_layer}')
    rows = tuple((plain(name), _indices(kv, name, table, layer_idx)) for name, table in tables.items())
    holders: dict[int, list[str]] = {}
    for name, indices in rows:
        for index in indices:
            holders.setdefault(index, []).append(name)
    blocks = tuple(_state(kv, layer_idx, index, tuple(holders.get(index, ()))) for index in range(kv.num_blocks))
    new = dict.fromkeys(name for name, _ in rows if name not in colour_order)
    return Snapshot(layer_idx, kv.block_size, blocks, rows, (*colour_order, *new))


def _indices(kv: KVBlockManager, name: object, table: BlockIdsPerLayer, layer_idx: int) -> tuple[int, ...]:
    """The block indices that a table shows in one layer."""
    if table is None or getattr(table, "freed", False):
        raise BlockError(
            f"session {name!r} holds no blocks: it was freed, or never computed; prefill it or leave it out"
        )
    lists = isinstance(table, Sequence) and all(isinstance(ids, Sequence) for ids in table)
    if not lists or len(table) != kv.num_layers:
        raise ConfigError(f"the table of {name!r} has no list for each layer: give its session.block_ids_per_layer")
    for block_id in table[layer_idx]:
        if block_id // kv.num_blocks != layer_idx or not _in_use(kv, block_id):
            raise BlockError(
                f"the table of {name!r} shows block {block_id}, which is not in use in layer {layer_idx}: "
                "give a live session's block_ids_per_layer"
            )
    return tuple(kv.block_index(block_id) for block_id in table[layer_idx])


def _in_use(kv: KVBlockManager, block_id: int) -> bool:
    try:
        kv.info(block_id)
    except BlockError:
        return False
    return True


def _state(kv: KVBlockManager, layer_idx: int, block_index: int, names: tuple[str, ...]) -> BlockState:
    block_id = layer_idx * kv.num_blocks + block_index
    if not _in_use(kv, block_id):
        return BlockState(block_index)
    info = kv.info(block_id)
    if len(names) > info.owners:
        raise BlockError(
            f"block {block_id} counts {counted(info.owners, 'owner')}, and the tables of {', '.join(names)} show it: "
            "give each live session once"
        )
    return BlockState(block_index, info.start, info.length, info.owners, info.cached, names)


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


def _entry_notes(
    snapshot: Snapshot, notes: Mapping[int, list[str]], since: Picture | None
) -> dict[tuple[str, int], list[str]]:
    """The notes of each entry (name, logical block): which block it showed before, then its block's notes."""
    earlier = dict(since.snapshot.tables) if since and since.snapshot else {}
    result = {}
    for name, indices in snapshot.tables:
        then = earlier.get(name, ())
        for logical, index in enumerate(indices):
            was = [f"was #{then[logical]}"] if logical < len(then) and then[logical] != index else []
            if was or index in notes:
                result[name, logical] = was + notes.get(index, [])
    return result


# -- words --------------------------------------------------------------------


def _title(snapshot: Snapshot) -> str:
    held = sum(state.owners > 0 for state in snapshot.blocks)
    free = sum(state.free for state in snapshot.blocks)
    cached = len(snapshot.blocks) - held - free
    counts = [f"{held} held", *([f"{cached} only cached"] if cached else []), f"{free} free"]
    size = f"{len(snapshot.blocks)} blocks of {snapshot.block_size} slots"
    return f"KV cache, layer {snapshot.layer_idx}: {size}; {', '.join(counts)}{_id_rule(snapshot)}"


def _id_rule(snapshot: Snapshot) -> str:
    """How a block's id follows from its number: ids count through all layers, numbers start again in each."""
    first = snapshot.layer_idx * len(snapshot.blocks)
    return f" (block id = {first} + #)" if first else ""


def _count_sessions(snapshot: Snapshot) -> str:
    words = [f"{name}: {snapshot.num_tokens(i)} tokens in blocks {list(i)}" for name, i in snapshot.tables]
    return "; ".join(words)


def _legend(snapshot: Snapshot, marked: bool, compared: bool) -> list[tuple[str, str]]:
    """(what the swatch is, text) of each entry."""
    sessions = [(snapshot.colour(n), f"{n}: {tokens_in(snapshot, i)}") for n, i in snapshot.tables]
    return sessions + _marks(marked, "the block has changed" if compared else "marked", snapshot.blocks)


def _marks(marked: bool, outline: str, blocks: Collection[BlockState]) -> list[tuple[str, str]]:
    """The legend of what is not a session: other owners, cached blocks, the thick outline and what it means."""
    marks = []
    if any(state.num_others for state in blocks):
        marks.append((OTHER_COLOUR, "“other”: a session without a name here"))
    if any(state.cached for state in blocks):
        marks.append(("", "“cached”: the prefix cache knows the block"))
    if marked:
        marks.append(("outline", outline))
    return marks


def _in_tables(snapshot: Snapshot) -> list[BlockState]:
    return [snapshot.blocks[index] for _, indices in snapshot.tables for index in indices]


def _rows(snapshot: Snapshot, notes: Collection[int], columns: int) -> list[tuple[BlockState, ...]]:
    """The blocks in rows; neighbouring rows of free blocks are one long row, which is not drawn but counted.

    The first row is drawn in any case, to show what a block looks like, where nothing is in use.
    """
    rows: list[tuple[BlockState, ...]] = []
    in_use = any(not state.free or state.block_index in notes for state in snapshot.blocks)
    for begin in range(0, len(snapshot.blocks), columns):
        row = snapshot.blocks[begin : begin + columns]
        if rows and not _used(row, notes) and not _used(rows[-1], notes) and (in_use or len(rows) > 1):
            rows[-1] += row
        else:
            rows.append(row)
    return rows


def _used(row: Sequence[BlockState], notes: Collection[int]) -> bool:
    return any(not state.free or state.block_index in notes for state in row)


def _strips_in_row(num_tables: int, in_row: int, columns: int) -> int:
    """How many tables stand side by side. A few stand one above the other, so that a column is one logical block."""
    if num_tables <= 4:
        return 1
    return max(1, (cells_width(columns) + 4 * GAP) // (cells_width(in_row) + 4 * GAP))
