"""Which row of the new keys goes to which slot of which block, drawn from the running engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from xml.etree import ElementTree

from ..errors import ConfigError
from ..lessons.l035_blocks import BlockIdsPerLayer, KVBlockManager
from .blocks import take_snapshot
from .sheet import (
    EMPTY,
    FAINT_INK,
    INK,
    LINE,
    LINE_HEIGHT,
    MARGIN,
    SLOTS_DRAWN,
    TEXT,
    BlockState,
    Picture,
    Sheet,
    Snapshot,
    counted,
    draw_arrow_to,
    draw_shape,
    draw_text,
    fit,
    text_width,
)

ROW_WIDTH, ARROWS, NUMBER = 121, 58, 34  # of a row, the arrows, and a block's number
OWNERS = 68, 200  # of a block's owners: as much as their names take, from the first to the second
STRIP, BOX = 120, 24  # the width of a block's slots, or more for many of them; the height of a row and of a block
PITCH = BOX + 8
MIN_SLOT = 20  # room for a slot's number


@dataclass(frozen=True, slots=True)
class Write:
    """Row `row` of key_new and value_new goes to slot `slot` of block `block`."""

    row: int
    block: int
    slot: int


def rows_to_blocks(
    kv: KVBlockManager,
    tables: Mapping[str, BlockIdsPerLayer],
    batch_idx: Sequence[int],
    block_idx: Sequence[int],
    positions: Sequence[int],
    layer_idx: int = 0,
) -> Picture:
    """The rows of key_new, the blocks of one layer, and an arrow from each row to the slot that it is written to.

    tables: for each row of key_new, in order, a name and the session's `block_ids_per_layer`. For each i, row
    batch_idx[i] goes to slot positions[i] of the block with index block_idx[i]; a row that is not in batch_idx is drawn
    without an arrow. Slots that hold a token already are filled. Draw it before the step writes.

    Raises `BlockError` for a table that is freed or not of this cache, and `ConfigError` for no tables, for lists of
    different lengths, for a row, a block or a slot that is not there, and for blocks of more than 16 slots.
    """
    snapshot = take_snapshot(kv, tables, layer_idx)
    if not snapshot.tables:
        raise ConfigError("tables is empty: give the table of each row of key_new")
    writes = _writes(snapshot, batch_idx, block_idx, positions)
    if snapshot.block_size > SLOTS_DRAWN:
        raise ConfigError(f"blocks have {snapshot.block_size} slots: at most {SLOTS_DRAWN} can be drawn")
    slot_width = max(STRIP // snapshot.block_size, MIN_SLOT)
    used = [state for state in snapshot.blocks if state.names]
    widest = max(ceil(text_width(_owners(state), TEXT)) + 8 for state in used)
    owners = min(max(OWNERS[0], widest), OWNERS[1])
    sheet = Sheet(ROW_WIDTH + ARROWS + NUMBER + snapshot.block_size * slot_width + owners)
    sheet.heading(f"{_counted_rows(writes, snapshot)}, layer {layer_idx}")
    _draw_headings(sheet, snapshot, slot_width, writes)
    middle = {state.block_index: sheet.y + n * PITCH + BOX // 2 for n, state in enumerate(used)}
    targets = {write.block: write for write in writes}
    for state in used:
        _draw_strip(sheet.root, middle[state.block_index], slot_width, state, snapshot, targets.get(state.block_index))
    _draw_rows(sheet, snapshot, writes, middle, max(len(used), len(snapshot.tables)))
    sheet.y += max(len(used), len(snapshot.tables)) * PITCH
    sheet.legend([(FAINT_INK, "holds a token"), ("outline", "written now")])
    return sheet.picture(_description(snapshot, writes), None)


def _writes(
    snapshot: Snapshot, batch_idx: Sequence[int], block_idx: Sequence[int], positions: Sequence[int]
) -> list[Write]:
    if not len(batch_idx) == len(block_idx) == len(positions):
        lengths = f"{len(batch_idx)}, {len(block_idx)} and {len(positions)}"
        raise ConfigError(f"batch_idx, block_idx and positions have {lengths} numbers: give as many of each")
    writes = [Write(*numbers) for numbers in zip(batch_idx, block_idx, positions, strict=True)]
    shown = {index for _, indices in snapshot.tables for index in indices}
    for write in writes:
        if not 0 <= write.row < len(snapshot.tables):
            raise ConfigError(f"batch_idx has row {write.row}: tables has {counted(len(snapshot.tables), 'row')}")
        if write.block not in shown:
            raise ConfigError(f"block_idx has block {write.block}, which none of the tables shows")
        if not 0 <= write.slot < snapshot.block_size:
            raise ConfigError(f"positions has slot {write.slot}: a block has slots 0 to {snapshot.block_size - 1}")
    if len({write.row for write in writes}) < len(writes) or len({write.block for write in writes}) < len(writes):
        raise ConfigError("a row or a block is given twice: each row has one token, and goes to a block of its own")
    return writes


# -- what is drawn --------------------------------------------------------------------


def _draw_headings(sheet: Sheet, snapshot: Snapshot, slot_width: int, writes: Sequence[Write]) -> None:
    """What the two columns are, and the numbers of the slots; those that are written to are bold."""
    left = _strip_left()
    baseline = sheet.y + TEXT
    draw_text(sheet.root, (MARGIN, baseline), "rows of key_new", colour=FAINT_INK)
    draw_text(sheet.root, (left - 6, baseline), "block, slot", colour=FAINT_INK, anchor="end")
    written = {write.slot for write in writes}
    for slot in range(snapshot.block_size):
        weight = "bold" if slot in written else "normal"
        at = (left + (slot + 0.5) * slot_width, baseline)
        draw_text(sheet.root, at, str(slot), weight=weight, anchor="middle")
    sheet.y += LINE_HEIGHT + 6


def _draw_rows(
    sheet: Sheet, snapshot: Snapshot, writes: Sequence[Write], middle: Mapping[int, int], num_lines: int
) -> None:
    """The rows, spread over the height of the blocks, and the arrows of those that are written."""
    by_row = {write.row: write for write in writes}
    for row, (name, _) in enumerate(snapshot.tables):
        y = sheet.y + round((row + 0.5) * num_lines * PITCH / len(snapshot.tables) - PITCH / 2)
        write = by_row.get(row)
        group = draw_shape(sheet.root, "g", class_="row", data_row=row, data_written=int(write is not None))
        dashes = {} if write else {"stroke_dasharray": "4 3"}
        fill = "white" if write else EMPTY
        box = {"x": MARGIN + 1, "y": y, "width": ROW_WIDTH - 2, "height": BOX, "rx": 3}
        draw_shape(group, "rect", **box, fill=fill, stroke=LINE, **dashes)
        if write:
            draw_shape(group, "rect", x=MARGIN + 1, y=y, width=8, height=BOX, fill=snapshot.colour(name))
        said = f"[{row}]  {name}" + ("" if write else ": not here")
        at = (MARGIN + 15, y + BOX // 2 + 4)
        draw_text(group, at, fit(said, ROW_WIDTH - 20, TEXT), colour=INK if write else FAINT_INK)
        if write:
            start = (MARGIN + ROW_WIDTH, y + BOX // 2)
            draw_arrow_to(group, start, (_strip_left() - NUMBER - 4, middle[write.block]), INK)


def _draw_strip(
    parent: ElementTree.Element,
    middle: int,
    slot_width: int,
    state: BlockState,
    snapshot: Snapshot,
    write: Write | None,
) -> None:
    """One block: its number, its slots, and whose it is. write: what goes into it, if anything."""
    left, top = _strip_left(), middle - BOX // 2
    group = draw_shape(parent, "g", class_="strip", data_block=state.block_index, data_filled=state.length)
    draw_text(group, (left - 6, middle + 4), f"#{state.block_index}", weight="bold", anchor="end")
    for slot in range(snapshot.block_size):
        fill = snapshot.colour(state.names[0]) if slot < state.length else EMPTY
        at = {"x": left + slot * slot_width, "y": top, "width": slot_width, "height": BOX}
        draw_shape(group, "rect", class_="slot", **at, fill=fill, stroke="white", stroke_width=2)
    if write:
        at = {"x": left + write.slot * slot_width + 2, "y": top + 1, "width": slot_width - 4, "height": BOX - 2}
        draw_shape(group, "rect", class_="target", data_slot=write.slot, **at, fill="white", stroke=INK, stroke_width=3)
        x = left + (write.slot + 0.5) * slot_width
        draw_text(group, (x, middle + 4), str(write.row), weight="bold", anchor="middle")
    right = left + snapshot.block_size * slot_width
    owners = fit(_owners(state), OWNERS[1] - 8, TEXT)
    draw_text(group, (right + 8, middle + 4), owners, colour=INK if write else FAINT_INK)


def _strip_left() -> int:
    return MARGIN + ROW_WIDTH + ARROWS + NUMBER


# -- words --------------------------------------------------------------------


def _owners(state: BlockState) -> str:
    """Whose block it is, such as "A", "A, B", or "A, 1 other" that has no row here."""
    others = [f"{state.num_others} other{'s' * (state.num_others != 1)}"] if state.num_others else []
    return ", ".join([*state.names, *others])


def _counted_rows(writes: Sequence[Write], snapshot: Snapshot) -> str:
    return f"{len(writes)} of {counted(len(snapshot.tables), 'row')} of key_new"


def _description(snapshot: Snapshot, writes: Sequence[Write]) -> str:
    names = [name for name, _ in snapshot.tables]
    said = [f"row {w.row} ({names[w.row]}) to slot {w.slot} of block #{w.block}" for w in writes]
    return f"{_counted_rows(writes, snapshot)} are written in layer {snapshot.layer_idx}: {'; '.join(said)}"
