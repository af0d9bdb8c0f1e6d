"""The judge of a block's owners, whichever way the cache keeps its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...pictures.sheet import counted
from .causes import Cause
from .pool import Before, Pool, Tracked
from .telling import fail, names_of


def look_at_owners_of(
    pool: Pool, before: Before, block_id: int, holders: Sequence[Tracked], where: str, **marks: Any
) -> None:
    """A block in use is shown by a session, and counts as many owners as sessions show it.

    where: what the verdict calls the block; marks: what it draws of it, as for `fail`.
    """
    info = pool.kv.blocks_in_use[block_id]
    owners = counted(info.owners, "owner")
    if not holders:
        what = f"{where} counts {owners}, and no session shows it: it never comes back (a leak)"
        reason = "whoever copies a shared block leaves it: its owner count goes down by one, and at 0 it is free"
        if block_id not in before.infos:
            reason = "a block was allocated and then not used"
        fail(pool, Cause.BOOKS_WRONG, what, reason=reason, **marks)
    if info.owners != len(holders):
        shown = f"{len(holders)} session{'s show' if len(holders) > 1 else ' shows'} it ({names_of(holders)})"
        reason = "too few: it would be given away while it is in use; a block of one's own counts one owner"
        if info.owners > len(holders):
            reason = "whoever copies a shared block leaves it: its owner count goes down by one"
        fail(pool, Cause.BOOKS_WRONG, f"{where} counts {owners}, and {shown}", reason=reason, **marks)
