"""The paged KV cache: K and V in blocks, and who owns which block. One table for all layers.

Paging a KV cache is vLLM's idea (PagedAttention, SOSP 2023). Lesson 062 starts from one list for each layer,
`lessons.l035_blocks`. A block is in exactly one of three states: *free*, *held* (its owner count says by how many
sessions), or *cached* (the prefix cache alone keeps it, and gives it back when the pool runs dry).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from ..checks import shown
from ..errors import BlockError, KVCacheExhausted
from .buffers import index_tensor
from .pool import KVPool, is_each_once


class BlockTable(list[int]):
    """The blocks of one session, each in every layer, in the order of its tokens; it owns each once, until `free`.

    While it lives it only grows, but for a shared last block that is replaced by its copy.
    """

    num_tokens = 0  # whose K and V are in its blocks
    freed = False
    cache: Any = None  # the `ref` of the one whose blocks they are
    row_cache: Any = None  # what a part of the decode step keeps of the list


@dataclass(slots=True)
class KVBlockInfo:
    """One block in use: how many sessions own it, and whether the prefix cache keeps it when the last one leaves."""

    owners: int = 1
    cached: bool = False


class Copy(NamedTuple):
    """A block to copy, K and V of all layers, before its new owner writes into it."""

    source: int
    destination: int


class KVBlockManager(KVPool):
    """K and V of all sessions, [num_layers, num_blocks, num_kv_heads, block_size, head_dim], and who owns each block.

    A call that needs a block when none is free raises `KVCacheExhausted` and changes nothing. Pads of a batch write
    into block `num_blocks`, which no session can hold. Tables that come again are not looked at before one is full.
    """

    spare_blocks = 1

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self._free_block_indices = list(range(self.num_blocks - 1, -1, -1))
        # Blocks without an owner that the prefix cache keeps; the one that was left first comes first.
        self._idle_blocks: dict[int, None] = {}
        self._block_infos: dict[int, KVBlockInfo] = {}
        self.forget: Callable[[int], None] = lambda block: None  # the prefix cache's: it is about to be reused
        self.placements = 0  # how often `place` has looked at tables
        self._placed: list[BlockTable] = []  # those that it has looked at last,
        self._room_until = 0  # which have room until the first of them has so many tokens

    def info(self, block: int) -> KVBlockInfo:
        try:
            return self._block_infos[block]
        except (KeyError, TypeError):
            raise BlockError(f"block {shown(block)} is not in use: freed twice, or never allocated") from None

    def num_available(self) -> int:
        """Blocks that can be allocated: free ones, and cached ones that can be evicted."""
        return len(self._free_block_indices) + len(self._idle_blocks)

    def allocate_block(self) -> int:
        """Take an empty block with one owner. Returns its index, the same in every layer."""
        self._require(1)
        if not self._free_block_indices:
            self._evict(next(iter(self._idle_blocks)))
        block = self._free_block_indices.pop()
        self._block_infos[block] = KVBlockInfo()
        return block

    def _require(self, num_blocks: int) -> None:
        if num_blocks > self.num_available():
            raise KVCacheExhausted(
                f"{num_blocks} KV blocks needed, {self.num_available()} of {self.num_blocks} available: "
                "free a session, or give the engine more blocks"
            )

    def _evict(self, block: int) -> None:
        self.forget(block)
        del self._idle_blocks[block]
        self._release(block)

    def _release(self, block: int) -> None:
        del self._block_infos[block]
        self._free_block_indices.append(block)

    @property
    def blocks_in_use(self) -> Mapping[int, KVBlockInfo]:
        """Index -> description of each block that is held or cached. It cannot be written, and stays up to date."""
        return MappingProxyType(self._block_infos)

    def free_blocks(self) -> list[int]:
        """The free blocks, in reverse: the last is the next to be taken. They may be reordered."""
        return self._free_block_indices

    def blocks_of(self, table: BlockTable) -> list[int]:
        """The blocks of a session as the prefix cache knows them, in their order."""
        return table

    def keep(self, block: int) -> None:
        """When its last owner leaves, this block stays as it is, until it is evicted."""
        self.info(block).cached = True

    def unkeep(self, block: int) -> None:
        """A block that an owner still holds is no longer kept when it leaves."""
        self.info(block).cached = False

    def allocate(self, num_tokens: int, shared: Sequence[int] = ()) -> BlockTable:
        """Blocks for `num_tokens` tokens: the full ones in `shared`, then new ones, whose K and V are to be written."""
        table = self._owner_of(shared)
        try:
            needed = -(-num_tokens // self.block_size) - len(table)
            self._require(needed)
            for _ in range(needed):
                table.append(self.allocate_block())  # at once: what is taken must be in the table
        except BaseException:
            self.free(table)
            raise
        table.num_tokens = num_tokens
        return table

    def share(self, table: BlockTable) -> BlockTable:
        """One more owner for each block, for a fork. Returns the new owner."""
        self._require_mine(table)
        sibling = self._owner_of(table)
        sibling.num_tokens = table.num_tokens
        return sibling

    def _owner_of(self, blocks: Sequence[int]) -> BlockTable:
        """A new owner of these blocks, each of which is held or cached."""
        self._room_until = 0  # a last block may be shared from now on
        infos = [(block, self.info(block)) for block in blocks]
        for block, info in infos:
            if info.owners == 0:
                del self._idle_blocks[block]
            info.owners += 1
        table = BlockTable(blocks)
        table.cache = self.ref
        return table

    def _require_mine(self, table: BlockTable) -> None:
        if getattr(table, "cache", None) is not self.ref:
            raise BlockError(f"{shown(table)} is no block table of this cache, or a copy: give one that it has made")
        if table.freed:
            raise BlockError("a block table is freed twice, or used after: its blocks may be another session's by now")

    def free(self, table: BlockTable) -> None:
        """An owner leaves; its list is emptied. A block without owners is free again, or cached."""
        self._require_mine(table)
        table.freed = True
        table.num_tokens = 0
        while table:  # from the end, so that the beginning of a sequence is the last to be reused or evicted
            self._drop_owner(table.pop())

    def _drop_owner(self, block: int) -> None:
        info = self._block_infos[block]
        info.owners -= 1
        if info.owners == 0 and info.cached:
            self._idle_blocks[block] = None
        elif info.owners == 0:
            self._release(block)

    def length(self, table: BlockTable) -> int:
        """Tokens that the blocks of a session hold, or have been allocated for."""
        return table.num_tokens

    def may_need_block(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether a session that grows to `num_tokens` tokens may need one more block, or a copy of its last one."""
        return len(table) * self.block_size < num_tokens or self.info(table[-1]).owners > 1

    def block_indices(self, tables: Sequence[BlockTable]) -> torch.Tensor:
        """int64 [L, B, blocks] on the device: the physical block of each logical one, 0 past the last."""
        most = max(map(len, tables))
        rows = [table + [0] * (most - len(table)) for table in tables]
        return index_tensor(rows, self.device).expand(self.num_layers, -1, -1)

    def place(self, tables: Sequence[BlockTable]) -> list[Copy]:
        """Make room for one more token of each session: a block behind a full last one, a copy of a shared one.

        Returns what is to be copied before anybody writes. The next token of a session then goes to slot
        `num_tokens % block_size` of its last block, which is its own. A second call has nothing left to do. Raises
        `KVCacheExhausted` before anything has changed, whichever session it is that finds no block.
        """
        if self._has_room(tables):
            return []
        self.placements += 1
        if not self.can_append(tables):
            self._require(self.blocks_to_append(tables))
        placed: list[tuple[BlockTable, Copy | None]] = []
        room = self.block_size if tables else 0
        try:
            for table in tables:
                if table.num_tokens == len(table) * self.block_size:
                    table.append(self.allocate_block())
                    placed.append((table, None))
                elif self._block_infos[table[-1]].owners > 1:
                    copy = Copy(table[-1], self.allocate_block())
                    table[-1] = copy.destination
                    self._drop_owner(copy.source)
                    placed.append((table, copy))
                room = min(room, len(table) * self.block_size - table.num_tokens)
        except BaseException:  # nobody will make the copies, so no table may show one
            self._take_back(placed)
            raise
        self._placed[:] = tables
        self._room_until = tables[0].num_tokens + room if tables else 0
        return [copy for _, copy in placed if copy is not None]

    def _has_room(self, tables: Sequence[BlockTable]) -> bool:
        """Whether these are the tables that `place` has looked at last, and no last block is full or shared since."""
        known = self._placed
        if not 0 < len(known) == len(tables) or known[0].num_tokens >= self._room_until or known[0].freed:
            return False
        return all(map(is_, tables, known))

    def _take_back(self, placed: list[tuple[BlockTable, Copy | None]]) -> None:
        """Undo what `place` has done so far: new blocks, and copies."""
        for table, copy in reversed(placed):
            self._drop_owner(table.pop())
            if copy is not None:
                table.append(copy.source)
                self._block_infos[copy.source].owners += 1

    def can_append(self, tables: Sequence[BlockTable]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        available = len(self._free_block_indices) + len(self._idle_blocks)
        if available >= len(tables) or self._has_room(tables):
            return True
        return available >= self.blocks_to_append(tables)

    def blocks_to_append(self, tables: Iterable[BlockTable]) -> int:
        """How many new blocks one more token of each of these sessions needs."""
        needed = 0
        writers: dict[int, int] = {}  # shared last block -> how many of these sessions are going to write into it
        for table in tables:
            if table.num_tokens == len(table) * self.block_size:
                needed += 1
            elif self._block_infos[table[-1]].owners > 1:
                writers[table[-1]] = writers.get(table[-1], 0) + 1
        # Each writer copies the shared block, but for the last owner, which then has it to itself.
        return needed + sum(min(n, self._block_infos[block].owners - 1) for block, n in writers.items())

    def audit(self, holders: Iterable[BlockTable], cached: Iterable[int] = ()) -> None:
        """Raise `BlockError` unless each block is in one state, with the owners that `holders` and `cached` show."""
        owners: Counter[int] = Counter()
        for table in holders:
            if len(set(table)) != len(table):
                raise BlockError(f"the block table {list(table)} shows a block twice")
            if not 0 <= len(table) * self.block_size - table.num_tokens <= self.block_size:
                raise BlockError(f"{table.num_tokens} tokens do not fill the {len(table)} blocks of their table")
            owners.update(table)
        kept, idle, infos = set(cached), self._idle_blocks, self._block_infos
        for block in {*owners, *kept, *idle, *infos}:
            right = KVBlockInfo(owners[block], block in kept) if block in kept or owners[block] else None
            if infos.get(block) != right or (block in idle) != (block in kept and not owners[block]):
                raise BlockError(f"block {block} should be {right}: {infos.get(block)}, idle: {block in idle}")
        if not is_each_once([*self._free_block_indices, *infos], self.num_blocks):
            raise BlockError("free and used blocks do not add up to the pool")
