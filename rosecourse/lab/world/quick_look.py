"""One look at everything, which is quick where nothing is wrong.

What it does not take for right, the judges look at.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...kv.blocks import KVBlockManager
from .pool import Before, Pool, Tracked


def all_in_order(pool: Pool, before: Before, batch: Sequence[Tracked], tokens: torch.Tensor | None) -> bool:
    """Whether a step of a batch has appended its tokens and changed nothing else.

    tokens: their K and V, [2, L, B, H, D]. A step in which a shared block was copied is never taken for right here.
    """
    try:
        KVBlockManager.audit(pool.kv, [t.table for t in pool.sessions])
        lists = all(_as_they_were(t, before) for t in pool.sessions if t not in batch)
        return lists and all(_grown(pool, t, before) for t in batch) and pool.holds_only(batch, tokens)
    except Exception:  # lists that cannot even be read: the judges will say so
        return False


def _as_they_were(t: Tracked, before: Before) -> bool:
    return _are_lists(t) and list(t.table) == before.lists[t.number]


def _grown(pool: Pool, t: Tracked, before: Before) -> bool:
    """Whether the lists of a session begin as they did, and end in blocks of its own that hold its last token."""
    needed = pool.blocks_needed(t.length)
    for ids, then in zip(t.table, before.lists[t.number], strict=True):
        info = pool.info_in_use(ids[-1])
        if len(ids) != needed or ids[: len(then)] != then or info.owners != 1 or info.start + info.length != t.length:
            return False
    return _are_lists(t)


def _are_lists(t: Tracked) -> bool:
    return isinstance(t.table, list) and all(isinstance(ids, list) and all(map(_is_id, ids)) for ids in t.table)


def _is_id(block_id: object) -> bool:
    return isinstance(block_id, int)
