"""The judges of the books of a kind of cache, as an oracle asks them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import book_judges, quick_look
from . import one_table_judges as one_table
from .pool import Before, Pool, Tracked


@dataclass(frozen=True)
class Books:
    """in_order(pool, before, batch): whether the books are right, at a glance. look: the same, closely. owners: the
    judge of owners alone. The last two raise `PartIsWrong` with the first fault.
    """

    in_order: Callable[[Pool, Before, Sequence[Tracked]], bool]
    look: Callable[[Pool, Before, Sequence[Tracked]], None]
    owners: Callable[[Pool, Before], None]


PER_LAYER_BOOKS = Books(quick_look.books_in_order, book_judges.look_at_books, book_judges.look_at_owners)
ONE_TABLE_BOOKS = Books(one_table.books_in_order, one_table.look_at_books, one_table.look_at_owners)
