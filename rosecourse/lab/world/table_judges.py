"""Judges of block tables: what a part returned is what the sessions' lists say, and the lists are only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from .causes import Cause
from .pool import Pool, Tracked
from .telling import fail
from .wrong_table import OldRows, WrongTable


def look_at_lists_read(pool: Pool, lists: dict[int, list[list[int]]]) -> None:
    """A part that makes tables reads the lists and changes none. lists: session number -> as they were before."""
    for t in pool.sessions:
        if list(t.table) != lists[t.number]:
            details = f"expected: {lists[t.number]}", f"found:    {list(t.table)}"
            what = f"the part changed the block lists of session {t.name}: it is only to read them"
            fail(pool, Cause.INPUTS_CHANGED, what, *details)


class TableJudge:
    """Judges the tables of one pool, and remembers the rows that were right, to know an old one again."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.width = pool.blocks_needed(pool.sizes.max_seq_len)
        self._old = OldRows()

    def look_at_tables(self, tables: Any, batch: Sequence[Tracked], when: str = "") -> None:
        """tables: int32 [L, B, max_blocks] on the device, 0 past the end of each list. Raises `PartIsWrong`."""
        self._look_at_form(tables, len(batch))
        right = [[self._row_of(t, layer) for t in batch] for layer in range(self.pool.sizes.layers)]
        given = tables.tolist()
        if given != right:
            self._tell(WrongTable(self.pool, batch, given, right, self._old), when)
        self._old.add(batch, right)

    def _row_of(self, t: Tracked, layer: int) -> list[int]:
        """A row straight from the list."""
        ids = t.table[layer]
        return [self.pool.index(i) for i in ids] + [0] * (self.width - len(ids))

    def _look_at_form(self, tables: Any, batch_size: int) -> None:
        device = self.pool.kv.device
        shape = (self.pool.sizes.layers, batch_size, self.width)
        wanted = f"a torch.int32 tensor {list(shape)} (layers, sessions, max_blocks) on {device}"
        if not isinstance(tables, torch.Tensor):
            what = "nothing (None): is there a `return`?" if tables is None else f"an object of {type(tables).__name__}"
        elif tuple(tables.shape) != shape:
            what = f"a tensor {list(tables.shape)}"
        elif tables.dtype != torch.int32:
            what = f"a tensor of {tables.dtype}"
        elif tables.device.type != device.type:
            what = f"a tensor on {tables.device}"
        else:
            return
        cause = Cause.ROW_SHAPE if isinstance(tables, torch.Tensor) else Cause.INTERFACE
        fail(self.pool, cause, f"the part returned {what}; the forward reads {wanted}")

    def _tell(self, table: WrongTable, when: str) -> NoReturn:
        """Raise `PartIsWrong` for the row of a table that shows best what is wrong with it."""
        (layer, b), cause, reason = table.cause()
        t, row, there = table.batch[b], table.right[layer][b], table.given[layer][b]
        n = next(n for n, (x, y) in enumerate(zip(there, row, strict=True)) if x != y)
        past = n >= len(t.table[layer])
        belongs = "0, for its list ends before" if past else f"block {row[n]}"
        where = f"layer {layer}, session {t.name}, logical block {n}"
        what = f"{where}: the table{when} says {there[n]}; it must be {belongs}"
        details = [f"expected: {row}", f"found:    {there}", f"its list: {t.table[layer]}"]
        if len(table.wrong) > 1:
            details.append(f"wrong in this step: {len(table.wrong)} of {len(table.right) * len(table.batch)} rows")
        marked = [] if past else [t.table[layer][n]]
        fail(self.pool, cause, what, *details, reason=reason, layer=layer, marked=marked)
