"""How a fault is told: with a picture of the blocks, and with names for blocks and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from ...errors import RosecourseError
from ...pictures.blocks import block_map
from ...pictures.sheet import Picture
from .causes import Cause
from .fault import Fault, PartIsWrong
from .pool import Pool, Tracked

MOST_BLOCKS = 120  # in a picture


def fail(
    pool: Pool,
    cause: Cause,
    what: str,
    *details: str,
    reason: str = "",
    layer: int = 0,
    marked: Sequence[int] = (),
    or_else: Cause | None = None,
) -> NoReturn:
    """Raise `PartIsWrong`, with a picture of a layer, some blocks (ids) of it marked. or_else: as of a `Fault`."""
    drawn = picture(pool, layer, marked)
    raise PartIsWrong(Fault(what, details, reason, picture=drawn, cause=cause, or_else=or_else))


def picture(pool: Pool, layer: int, marked: Sequence[int] = ()) -> Picture | None:
    """The blocks of a layer as they are; None for more than can be seen.

    A session that cannot be drawn, its list being wrong, is left out.
    """
    if pool.sizes.num_blocks > MOST_BLOCKS:
        return None
    tables: dict[str, Any] = {}
    drawn = None
    for tracked in [None, *pool.sessions]:
        more = tables | ({tracked.name: tracked.table} if tracked else {})
        ids = {i for i in marked if i // pool.sizes.num_blocks == layer}
        try:
            drawn = block_map(pool.kv, more, layer, highlight=ids)
            tables = more
        except (RosecourseError, TypeError, AttributeError):
            continue
    return drawn


def block_name(pool: Pool, block_id: int) -> str:
    """A block as the pictures number it, and its id where that is another number."""
    return pool.layout.name(*divmod(block_id, pool.sizes.num_blocks), block_id)


def names_of(tracked: Sequence[Tracked]) -> str:
    return ", ".join(t.name for t in tracked) or "no session"
