"""One look at the books of a cache with lists for each layer, which is quick where nothing is wrong.

What it does not take for right, the judges look at.
"""

from __future__ import annotations

from collections.abc import Sequence

from .pool import Before, Pool, Tracked


def books_in_order(pool: Pool, before: Before, batch: Sequence[Tracked]) -> bool:
    """Whether a step of a batch has changed the books as it must, and not otherwise.

    A step in which a shared block was copied is never taken for right here. Raises whatever lists raise that cannot
    even be read.
    """
    lists = all(_as_they_were(t, before) for t in pool.sessions if t not in batch)
    return lists and all(_grown(pool, t, before) for t in batch)


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
