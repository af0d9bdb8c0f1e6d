"""Judges of the books where a session has one table for all layers: its blocks, its number of tokens, and owners.

Each looks at one thing and raises `PartIsWrong` with the first fault that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...kv.blocks import BlockTable
from ...pictures.sheet import counted
from .causes import Cause
from .misplaced import block_written, left_out
from .number_judges import look_at_contents
from .owner_judges import look_at_owners_of
from .pool import Before, Pool, Tracked
from .telling import fail, names_of


def books_in_order(pool: Pool, before: Before, batch: Sequence[Tracked]) -> bool:
    """Whether a step of a batch has changed the books as it must, and not otherwise; no copy is taken for right."""
    return all(
        isinstance(t.table, BlockTable)
        and t.table.num_tokens == t.length
        and len(t.table) == pool.blocks_needed(t.length)
        and t.table[: len(had(before, t))] == had(before, t)
        and (t not in batch or pool.kv.info(t.table[-1]).owners == 1)
        for t in pool.sessions
    )


def had(before: Before, t: Tracked) -> list[int]:
    """The blocks that a session showed before the step."""
    return before.lists[t.number][0]


def look_at_books(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """The order is that in which one fault explains the next."""
    for t in pool.sessions:
        _look_at_table(pool, t)
    for t in pool.sessions:
        _look_at_others(pool, before, batch, t)
        _look_at_kept_blocks(pool, before, t)
        _look_at_number_of_blocks(pool, before, batch, t)
    _look_at_shared_blocks(pool, before, batch)
    for t in pool.sessions:
        _look_at_num_tokens(pool, before, batch, t)


# -- the blocks of a session ------------------------------------------------------------------------------------------


def _look_at_table(pool: Pool, t: Tracked) -> None:
    table: Any = t.table
    if not isinstance(table, BlockTable) or not all(isinstance(block, int) for block in table):
        what = f"session {t.name}: its table is {table!s:.60}, no `BlockTable` of whole numbers"
        fail(pool, Cause.BOOKS_WRONG, what, reason="change the table that is there: others know it too")
    for block in table:
        where = f"session {t.name}: its table, {list(table)},"
        if not 0 <= block < pool.sizes.num_blocks:
            fail(pool, Cause.BOOKS_WRONG, f"{where} shows {block}, which is no block's index")
        if block not in pool.kv.blocks_in_use:
            reason = "the block was given back while this session still shows it: owner count lowered too often?"
            fail(pool, Cause.BOOKS_WRONG, f"{where} shows {block}, which is free", reason=reason)
        if table.count(block) > 1:
            fail(pool, Cause.BOOKS_WRONG, f"{where} shows {block} twice")


def _look_at_others(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked) -> None:
    if t in batch or list(t.table) == had(before, t):
        return
    what = f"session {t.name} is not to be appended to, and its table has changed"
    details = f"expected: {had(before, t)}", f"found:    {list(t.table)}"
    reason = "its table was taken for another session's; whose it is, the batch says, not its place"
    fail(pool, Cause.WRONG_SESSION, what, *details, reason=reason)


def _look_at_kept_blocks(pool: Pool, before: Before, t: Tracked) -> None:
    full = (t.length - 1) // pool.sizes.block_size  # blocks before the one of its last token
    for n, block in enumerate(had(before, t)):
        shared = before.infos[block].owners > 1
        if n < len(t.table) and (t.table[n] == block or (shared and n >= full)):
            continue
        now = f"shows block {t.table[n]} in its place" if n < len(t.table) else "does not show it any more"
        what = f"session {t.name} had block {block}, {'full' if n < full else 'its own'}, and {now}"
        reason = "a block of which the session is the only owner is written where it is"
        if n < full:
            reason = "a full block is never written again: it need not be copied, even if shared; a new one follows it"
        fail(pool, Cause.BOOKS_WRONG, what, reason=reason)


def _look_at_number_of_blocks(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked) -> None:
    needed = pool.blocks_needed(t.length)
    if len(t.table) == needed:
        return
    cause = Cause.ROLLOVER_MISSED
    tokens, blocks = counted(t.length, "token"), counted(needed, "block")
    what = f"session {t.name} has {tokens}: {blocks}; its table shows {len(t.table)}"
    if len(t.table) > needed:
        more = len(t.table) - len(had(before, t))
        reason = f"a new block was taken though the last one had a free slot (block_size is {pool.sizes.block_size})"
        if more > 1:
            cause, reason = Cause.BOOKS_WRONG, f"{more} blocks were taken in one step: one serves all layers"
    elif needed <= len(had(before, t)):
        cause, reason = Cause.BOOKS_WRONG, "a block was removed from the table"
    elif set(pool.kv.blocks_in_use) - {block for s in pool.sessions for block in s.table}:
        cause, reason = Cause.BOOKS_WRONG, "a block was taken, and not put into the table"
    elif (block_id := _written(pool, before, t)) is not None:
        name = f"block {pool.index(block_id)}"
        reason = f"the token went into {name}: a full block is followed by a new one, which is put into the table"
    else:
        cause, reason = left_out(pool, before, batch), "nothing was appended, or no room was made for it: `kv.place`"
    fail(pool, cause, what, f"its table: {list(t.table)}", reason=reason)


def _written(pool: Pool, before: Before, t: Tracked) -> int | None:
    """The id of a block into which a session's new token went in the step, in the first layer in which it went."""
    found = (block_written(pool, before, t, layer) for layer in range(pool.sizes.layers))
    return next((block_id for block_id in found if block_id is not None), None)


def _look_at_shared_blocks(pool: Pool, before: Before, batch: Sequence[Tracked]) -> None:
    """A session that has written has its last block to itself."""
    for t in batch:
        others = [s for s in pool.sessions if s is not t and t.table[-1] in s.table]
        if not others:
            continue
        own = "a copy of its own" if t.table[-1] in before.infos else "a new block of its own"
        shown = f"block {t.table[-1]}, which {names_of(others)} {'share' if others[1:] else 'shares'}"
        what = f"position {t.length - 1} of session {t.name} was to go into {own}; {t.name} still shows {shown}"
        cause = Cause.COW_MISSED
        reason = "a shared block that is not full is copied before one of its owners writes (copy-on-write)"
        if all(_written(pool, before, s) is None for s in (t, *others) if s in batch):
            cause, reason = left_out(pool, before, batch), f"nothing was written for session {t.name}: it was left out"
        fail(pool, cause, what, reason=reason)


# -- tokens and owners ------------------------------------------------------------------------------------------------


def _look_at_num_tokens(pool: Pool, before: Before, batch: Sequence[Tracked], t: Tracked) -> None:
    more = t.table.num_tokens - t.length
    if not more:
        return
    are = "is" if t.length == 1 else "are"
    what = f"session {t.name}: its table counts {counted(t.table.num_tokens, 'token')}; {t.length} {are} to be in it"
    if more > 0:
        reason = "num_tokens was raised more than once for one token: once a step, and not once for each layer"
        fail(pool, Cause.BOOKS_WRONG, what, reason=reason)
    if t in batch and _written(pool, before, t) is None:
        reason = f"nothing was written for session {t.name}: it was left out"
        fail(pool, left_out(pool, before, batch), what, reason=reason)
    look_at_contents(pool, before, batch)
    fail(pool, Cause.BOOKS_WRONG, what, reason="K and V were written, and `table.num_tokens` was not raised after it")


def look_at_owners(pool: Pool, before: Before) -> None:
    """Each block in use is shown by a session, and counts as many owners as sessions show it."""
    for block in sorted(pool.kv.blocks_in_use):
        look_at_owners_of(pool, before, block, [t for t in pool.sessions if block in t.table], f"block {block}")
