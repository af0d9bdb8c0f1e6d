"""The paged KV cache of sessions that go on: most steps need no block, and nobody looks for one."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

from . import padded
from .one_table import BlockTable, Copy


class KVBlockManager(padded.KVBlockManager):
    """The same. Tables that come again, each with one token more, are not looked at before one of them is full."""

    def __init__(self, **sizes: Any) -> None:
        """sizes: those of a `KVPool`."""
        super().__init__(**sizes)
        self.placements = 0  # how often `place` has looked at tables
        self._placed: list[BlockTable] = []  # those that it has looked at last,
        self._room_until = 0  # which have room until the first of them has so many tokens

    def place(self, tables: Sequence[BlockTable]) -> list[Copy]:
        """See `one_table.KVBlockManager.place`."""
        if self._has_room(tables):
            return []
        self.placements += 1
        copies = super().place(tables)
        room = min((len(table) * self.block_size - table.num_tokens for table in tables), default=0)
        self._placed = list(tables)
        self._room_until = tables[0].num_tokens + room if tables else 0
        return copies

    def can_append(self, tables: Sequence[BlockTable]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        return self._has_room(tables) or super().can_append(tables)

    def _has_room(self, tables: Sequence[BlockTable]) -> bool:
        """Whether these are the tables that `place` has looked at last, and no last block is full or shared since."""
        known = self._placed
        return (
            len(tables) == len(known) > 0
            and known[0].num_tokens < self._room_until
            and not known[0].freed
            and all(map(is_, tables, known))
        )

    def _owner_of(self, blocks: Sequence[int]) -> BlockTable:
        self._room_until = 0  # a last block may be shared from now on
        return super()._owner_of(blocks)
