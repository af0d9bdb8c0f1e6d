"""The block lists that the host keeps of each session: one for each layer, or one for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..checks import require
from ..errors import BlockError
from ..lessons.l035_blocks import KVBlockManager
from .grid import Cell, Grid, draw_grids, label
from .sheet import INK, OWNER_COLOURS, SHARED, USED, Picture, counted, plain


def table_lists(kv: Any, tables: Mapping[str, Any]) -> Picture:
    """Every block list that a cache keeps of these sessions, layer by layer, as block indices.

    tables: name -> `session.table`. A block with several owners is grey; a number that differs from the first list's in
    the same place has a thick outline. Raises `BlockError` for a table that is freed, and `ConfigError` for no tables.
    """
    require(len(tables) > 0, "tables is empty: give at least one session's table")
    per_layer = isinstance(kv, KVBlockManager)
    grids, spoken, cells = [], [], []
    for number, (name, table) in enumerate(tables.items()):
        if table is None or table.freed:
            raise BlockError(f"session {plain(name)!r} holds no blocks: it was freed, or never computed")
        lists = table if per_layer else [table]
        held = sorted({_end(kv, ids) for ids in lists} if per_layer else {table.num_tokens})
        tokens = " or ".join([*map(str, held[:-1]), counted(held[-1], "token")])
        grids.append(Grid([[label(f"{plain(name)}: {tokens}", OWNER_COLOURS[number % len(OWNER_COLOURS)])]]))
        indices = [[kv.block_index(one) if per_layer else one for one in ids] for ids in lists]
        rows = [
            [_cell(kv, *one) for one in zip_longest(ids, own, indices[0][: len(own)])]
            for ids, own in zip(lists, indices, strict=True)
        ]
        heads = [label(f"layer {layer}" if per_layer else "all layers") for layer in range(len(lists))]
        grids.append(Grid([[head, *row] for head, row in zip(heads, rows, strict=True)]))
        spoken.append(f"{plain(name)}: {', '.join(map(str, indices))}")
        cells += [rows]
    flat = [cell for rows in cells for row in rows for cell in row]
    title = (
        f"{counted(sum(map(len, cells)), 'list')} of {counted(len(tables), 'session')}, {counted(len(flat), 'number')}"
    )
    legend = [(SHARED, "has several owners")] if any(cell.fill == SHARED for cell in flat) else []
    legend += [("outline", "another index than in layer 0")] if any(cell.mark for cell in flat) else []
    return draw_grids(title, grids, legend, f"{title}. {'; '.join(spoken)}")


def _cell(kv: Any, block_id: int, index: int, in_layer_0: int | None) -> Cell:
    mark = "" if index == in_layer_0 else INK
    return Cell(f"#{index}", SHARED if kv.info(block_id).owners > 1 else USED, mark)


def _end(kv: Any, block_ids: Sequence[int]) -> int:
    """How many tokens one layer's list holds."""
    last = kv.info(block_ids[-1]) if block_ids else None
    return last.start + last.length if last else 0
