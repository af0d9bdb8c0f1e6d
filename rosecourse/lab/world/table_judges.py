"""Judges of block tables: what a part returned is what the sessions' lists say, and the lists are only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .pool import Pool, Tracked
from .telling import block_name, fail

Rows = list[list[list[int]]]  # layer, session, logical block -> physical block


def look_at_lists_read(pool: Pool, lists: dict[int, list[list[int]]]) -> None:
    """A part that makes tables reads the lists and changes none. lists: session number -> as they were before."""
    for t in pool.sessions:
        if list(t.table) != lists[t.number]:
            details = f"expected: {lists[t.number]}", f"found:    {list(t.table)}"
            fail(pool, f"the part changed the block lists of session {t.name}: it is only to read them", *details)


class TableJudge:
    """Judges the tables of one pool, and remembers the rows that were right, to know an old one again."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.width = pool.blocks_needed(pool.sizes.max_seq_len)
        self._old_rows: dict[tuple[int, int], list[list[int]]] = {}  # (session, layer) -> its right rows so far

    def look_at_tables(self, tables: Any, batch: Sequence[Tracked], when: str = "") -> None:
        """tables: int32 [L, B, max_blocks] on the device, 0 past the end of each list. Raises `PartIsWrong`."""
        self._look_at_form(tables, len(batch))
        right = [[self._row_of(t, layer) for t in batch] for layer in range(self.pool.sizes.layers)]
        given = tables.tolist()
        for layer, rows in enumerate(right):
            for b, row in enumerate(rows):
                if given[layer][b] != row:
                    self._tell(batch, layer, b, given, right, when)
        for layer, rows in enumerate(right):
            for t, row in zip(batch, rows, strict=True):
                self._old_rows.setdefault((t.number, layer), []).append(row)

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
        fail(self.pool, f"the part returned {what}; the forward reads {wanted}")

    def _tell(self, batch: Sequence[Tracked], layer: int, b: int, given: Rows, right: Rows, when: str) -> None:
        """Raise `PartIsWrong` for row b of a layer; given, right: all rows as they are and as they must be."""
        t, row, there = batch[b], right[layer][b], given[layer][b]
        n = next(n for n, (x, y) in enumerate(zip(there, row, strict=True)) if x != y)
        past = n >= len(t.table[layer])
        belongs = "0, for its list ends before" if past else f"block {row[n]}"
        where = f"layer {layer}, session {t.name}, logical block {n}"
        what = f"{where}: the table{when} says {there[n]}; it must be {belongs}"
        details = (f"expected: {row}", f"found:    {there}", f"its list: {t.table[layer]}")
        reason = self._why(t, layer, b, there, right, past)
        if not any(map(any, given[layer])):
            reason = f"nothing was written for layer {layer}"
        marked = [] if past else [t.table[layer][n]]
        fail(self.pool, what, *details, reason=reason, layer=layer, marked=marked)

    def _why(self, t: Tracked, layer: int, b: int, there: list[int], right: Rows, past: bool) -> str:
        """A likely cause of `there` being where row b of a layer belongs."""
        ids = t.table[layer]
        indices = [self.pool.index(i) for i in ids]
        if not any(there):
            return "nothing was written into this row"
        if there in self._old_rows.get((t.number, layer), []):
            return "stale: this is the session's row of an earlier step; its list has changed since"
        for other, row in enumerate(right[layer]):
            if other != b and there == row:
                return f"this is the row of sessions[{other}]: rows are those of the batch, in its order"
        if any(there == row for (_, at), rows in self._old_rows.items() if at == layer for row in rows):
            return "stale: this is the row that another session had in an earlier step"
        for other, rows in enumerate(right):
            if other != layer and there == rows[b]:
                return f"this is the session's row of layer {other}"
        if past:
            return "old entries past the end of the list, which must be 0"
        if any(not 0 <= n < self.pool.sizes.num_blocks for n in there):
            name = block_name(self.pool, ids[0])
            return f"a table shows a block's index in its layer: id - layer × num_blocks, here {name}"
        if sorted(there[: len(ids)]) == sorted(indices):
            return "the right blocks, in another order: logical block n is the n-th of the list"
        if len(ids) > 1 and there[len(ids) - 1] != indices[-1] and there[: len(ids) - 1] == indices[:-1]:
            return "stale: the last block is new, or was replaced by a copy, and its entry was not written"
        if there[: len(ids)] != indices:
            return "stale: some entries are an earlier row's; when a list has changed, what has changed is written anew"
        return ""
