"""Reading the block tables that a part returned: where they are not what the sessions' lists say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from .judges import block_name, fail

if TYPE_CHECKING:
    from .oracle import Oracle, Tracked


def look_at_tables(oracle: Oracle, tables: Any, batch: Sequence[Tracked], when: str = "") -> None:
    """tables: int32 [L, B, max_blocks] on the device, 0 past the end of each list. Raises `PartIsWrong`."""
    _look_at_form(oracle, tables, len(batch))
    right = [[row_of(oracle, t, layer) for t in batch] for layer in range(oracle.sizes.layers)]
    found = tables.tolist()
    for layer, rows in enumerate(right):
        for b, row in enumerate(rows):
            if found[layer][b] != row:
                _tell(oracle, batch, layer, b, found, right, when)
    for t in batch:
        for layer in range(oracle.sizes.layers):
            oracle.shown.setdefault((t.number, layer), []).append(row_of(oracle, t, layer))


def look_at_lists_read(oracle: Oracle, lists: dict[int, list[list[int]]]) -> None:
    """Whoever makes tables reads the lists, and changes none."""
    for t in oracle.sessions:
        if list(t.table) != lists[t.number]:
            details = f"expected: {lists[t.number]}", f"found:    {list(t.table)}"
            fail(oracle, f"the part changed the block lists of session {t.name}: it is only to read them", *details)


def row_of(oracle: Oracle, t: Tracked, layer: int) -> list[int]:
    """A row straight from the list."""
    ids = t.table[layer]
    width = oracle.blocks_needed(oracle.sizes.max_seq_len)
    return [oracle.index(i) for i in ids] + [0] * (width - len(ids))


def _look_at_form(oracle: Oracle, tables: Any, batch_size: int) -> None:
    shape = (oracle.sizes.layers, batch_size, oracle.blocks_needed(oracle.sizes.max_seq_len))
    wanted = f"a torch.int32 tensor {list(shape)} (layers, sessions, max_blocks) on {oracle.kv.device}"
    if not isinstance(tables, torch.Tensor):
        found = "nothing (None): is there a `return`?" if tables is None else f"an object of {type(tables).__name__}"
    elif tuple(tables.shape) != shape:
        found = f"a tensor {list(tables.shape)}"
    elif tables.dtype != torch.int32:
        found = f"a tensor of {tables.dtype}"
    elif tables.device.type != oracle.kv.device.type:
        found = f"a tensor on {tables.device}"
    else:
        return
    fail(oracle, f"the part returned {found}; the forward reads {wanted}")


def _tell(
    oracle: Oracle,
    batch: Sequence[Tracked],
    layer: int,
    b: int,
    tables: list[list[list[int]]],
    right: list[list[list[int]]],
    when: str,
) -> None:
    t, row, found = batch[b], right[layer][b], tables[layer][b]
    n = next(n for n, (x, y) in enumerate(zip(found, row, strict=True)) if x != y)
    past = n >= len(t.table[layer])
    belongs = "0, for its list ends before" if past else f"block {row[n]}"
    what = f"layer {layer}, session {t.name}, logical block {n}: the table{when} says {found[n]}; it must be {belongs}"
    details = (f"expected: {row}", f"found:    {found}", f"its list: {t.table[layer]}")
    reason = _why(oracle, t, layer, b, found, right, past)
    if not any(map(any, tables[layer])):
        reason = f"nothing was written for layer {layer}"
    marked = [] if past else [t.table[layer][n]]
    fail(oracle, what, *details, reason=reason, layer=layer, marked=marked)


def _why(
    oracle: Oracle, t: Tracked, layer: int, b: int, found: list[int], right: list[list[list[int]]], past: bool
) -> str:
    ids = t.table[layer]
    indices = [oracle.index(i) for i in ids]
    if not any(found):
        return "nothing was written into this row"
    if found in oracle.shown.get((t.number, layer), []):
        return "stale: this is the session's row of an earlier step; its list has changed since"
    for other, row in enumerate(right[layer]):
        if other != b and found == row:
            return f"this is the row of sessions[{other}]: rows are those of the batch, in its order"
    if any(found == row for (_, at), rows in oracle.shown.items() if at == layer for row in rows):
        return "stale: this is the row that another session had in an earlier step"
    for other, rows in enumerate(right):
        if other != layer and found == rows[b]:
            return f"this is the session's row of layer {other}"
    if past:
        return "old entries past the end of the list, which must be 0"
    if any(not 0 <= n < oracle.sizes.num_blocks for n in found):
        return f"a table shows a block's index in its layer: id - layer × num_blocks, here {block_name(oracle, ids[0])}"
    if sorted(found[: len(ids)]) == sorted(indices):
        return "the right blocks, in another order: logical block n is the n-th of the list"
    if len(ids) > 1 and found[len(ids) - 1] != indices[-1] and found[: len(ids) - 1] == indices[:-1]:
        return "stale: the last block is new, or was replaced by a copy, and its entry was not written"
    if found[: len(ids)] != indices:
        return "stale: some entries are an earlier row's; when a list has changed, what has changed is written anew"
    return ""
