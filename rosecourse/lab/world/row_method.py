"""The judge of the method that exercise 036 names: whoever asks it for a row gets one, also who is not the part.

Nothing but the part calls it in the course, so that tables are right whatever it takes. Here it is called as the
exercise writes it. A part that has no such method gets its rows in another way, which is up to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import Learner
from .pool import Pool, Tracked

METHOD = "get_paged_block_table_row_cpu"
CALL = f"`self.{METHOD}(table, layer_idx=layer_idx, offset=layer_idx * num_blocks)`"
RETURNS = "one session's row of one layer, int32 [max_blocks]"


def look_at_row_method(pool: Pool, learner: Learner, part: object, t: Tracked, width: int) -> None:
    """Ask for the rows of a session. Raises `PartIsWrong` if they do not come.

    width: max_blocks. The part has made the session's tables before.
    """
    method = getattr(part, METHOD, None)
    if not callable(method):
        return
    for layer, ids in enumerate(t.table):
        named = {"layer_idx": layer, "offset": layer * pool.sizes.num_blocks}
        _look_at_signature(method, t.table, named)
        try:
            row = learner.call(partial(method, **named), t.table, names=("table",))
        except PartIsWrong as wrong:
            raise PartIsWrong(_fault(wrong.fault.what, *wrong.fault.details)) from None
        right = [pool.index(block_id) for block_id in ids] + [0] * (width - len(ids))
        if _numbers(row) != right:
            what = "nothing" if row is None else f"an object of {type(row).__name__}"
            raise PartIsWrong(_fault(f"it returned {what}", f"expected: {right}", f"found:    {row!s:.200}"))


def _look_at_signature(method: Callable[..., Any], table: Any, named: dict[str, int]) -> None:
    try:
        inspect.signature(method).bind(table, **named)
    except TypeError as error:
        raise PartIsWrong(_fault(f"it cannot be called so: {error}")) from None
    except ValueError:  # it has no signature: calling it will tell
        return


def _fault(what: str, *details: str) -> Fault:
    asked = f"{METHOD} gives no row to whoever asks as the exercise does: {what}"
    reason = f"it takes a block table, and returns {RETURNS}"
    return Fault(asked, (f"asked:    {CALL}", *details), reason, cause=Cause.INTERFACE)


def _numbers(row: Any) -> list[int] | None:
    """The entries of a row, in whatever it has been put; None if it is none."""
    try:
        return [int(number) for number in row]
    except (TypeError, ValueError, RuntimeError):
        return None
