"""The paged KV cache of lessons 035 to 061: K and V tensors cut into blocks, and who owns which block.

Each layer has its own pool of blocks. A session holds, for each layer, a list of block ids; the id is global
(`layer * num_blocks + block_index`), as in the articles. The idea of paging a KV cache is vLLM's (PagedAttention,
SOSP 2023).

A block is in exactly one of three states: *free*, *held* (its owner count says by how many sessions), or *cached* (no
session holds it, but the prefix cache does and gives it back when the pool runs dry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from ..checks import is_count, shown
from ..errors import BlockError, KVCacheExhausted
from ..kv.buffers import index_tensor
from ..kv.pool import KVPool, is_each_once


class BlockTable(list[list[int]]):
    """The blocks of one session: for each layer the global ids of its blocks, in the order of its tokens.

    It is an owner: each of its blocks counts it once, until `KVBlockManager.free` takes it back, which works once.
    While it lives its lists only grow, but for a shared last block that is replaced by its copy; whatever is derived
    from it belongs to it and dies with it.
    """

    freed = False
    cache: Any = None  # the `ref` of the one whose blocks they are
    row_cache: list[Any] | None = None  # what a part of the decode step keeps of each layer's list


BlockIdsPerLayer = Sequence[list[int]]
Kept = tuple[int, ...]  # what the prefix cache knows a full block by: one block of each layer


@dataclass(slots=True)
class KVBlockInfo:
    """One block in use: where it is, which positions it holds, and how many sessions own it."""

    layer: int
    block_index: int
    start: int  # position of its first token in the session
    length: int = 0  # tokens written, at most block_size
    owners: int = 1
    cached: bool = False  # the prefix cache knows it: when the last owner leaves it is kept, not freed


class KVBlockManager(KVPool):
    """K and V of all sessions, [num_layers, num_blocks, num_kv_heads, block_size, head_dim], and who owns each block.

    A call that needs a block when none is free raises `KVCacheExhausted` and changes nothing.
    """

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self._free_block_indices = [list(range(self.num_blocks - 1, -1, -1)) for _ in range(self.num_layers)]
        # Blocks without an owner that the prefix cache keeps; the one that was left first comes first.
        self._idle_block_ids: list[dict[int, None]] = [{} for _ in range(self.num_layers)]
        self._block_infos: dict[int, KVBlockInfo] = {}
        self._kept: dict[int, Kept] = {}  # block id -> the blocks, of all layers, that the prefix cache keeps with it
        self.forget: Callable[[Kept], None] = lambda kept: None  # the prefix cache's: they are about to be reused

    def info(self, block_id: int) -> KVBlockInfo:
        try:
            return self._block_infos[block_id]
        except (KeyError, TypeError):
            raise BlockError(f"block {shown(block_id)} is not in use: freed twice, or never allocated") from None

    def block_index(self, block_id: int) -> int:
        """Where a block lies in the tensors of its layer."""
        return block_id % self.num_blocks

    def num_available(self, layer_idx: int | None = None) -> int:
        """Blocks that can be allocated: free ones, and cached ones that can be evicted. None: in every layer."""
        if layer_idx is None:
            return min(map(self.num_available, range(self.num_layers)))
        return len(self._free_block_indices[layer_idx]) + len(self._idle_block_ids[layer_idx])

    def allocate_block(self, layer_idx: int, start: int = 0) -> int:
        """Take an empty block with one owner; its first slot is for position `start`. Returns its global id."""
        if not is_count(layer_idx, 0) or layer_idx >= self.num_layers:
            raise BlockError(f"layer_idx is {shown(layer_idx)}: give 0 to {self.num_layers - 1}")
        self._require(layer_idx, 1)
        free = self._free_block_indices[layer_idx]
        if not free:
            self._evict(next(iter(self._idle_block_ids[layer_idx])))
        block_index = free.pop()
        block_id = layer_idx * self.num_blocks + block_index
        self._block_infos[block_id] = KVBlockInfo(layer_idx, block_index, start)
        return block_id

    def _require(self, layer_idx: int, num_blocks: int) -> None:
        if num_blocks > self.num_available(layer_idx):
            raise KVCacheExhausted(
                f"{num_blocks} KV blocks needed, {self.num_available(layer_idx)} of {self.num_blocks} available: "
                "free a session, or give the engine more blocks"
            )

    def _evict(self, block_id: int) -> None:
        kept = self._kept[block_id]
        self.forget(kept)
        for evicted in kept:
            del self._kept[evicted]
            del self._idle_block_ids[self._block_infos[evicted].layer][evicted]
            self._release(evicted)

    def _release(self, block_id: int) -> None:
        info = self._block_infos.pop(block_id)
        self._free_block_indices[info.layer].append(info.block_index)

    @property
    def blocks_in_use(self) -> Mapping[int, KVBlockInfo]:
        """Id -> description of each block that is held or cached. It cannot be written, and stays up to date."""
        return MappingProxyType(self._block_infos)

    def free_blocks(self, layer_idx: int) -> list[int]:
        """The indices of a layer's free blocks, in reverse: the last is the next to be taken. They may be reordered."""
        return self._free_block_indices[layer_idx]

    def blocks_of(self, table: BlockIdsPerLayer) -> list[Kept]:
        """The blocks of a session as the prefix cache knows them, in their order."""
        return list(zip(*table, strict=True))

    def keep(self, kept: Kept) -> None:
        """When their last owner leaves, these blocks stay as they are, until they are evicted."""
        for block_id in kept:
            self.info(block_id).cached = True
            self._kept[block_id] = kept

    def unkeep(self, kept: Kept) -> None:
        """Blocks that an owner still holds are no longer kept when it leaves."""
        for block_id in kept:
            self.info(block_id).cached = False
            del self._kept[block_id]

    def allocate(self, num_tokens: int, shared: Sequence[Kept] = ()) -> BlockTable:
        """Blocks for `num_tokens` tokens: the full blocks in `shared` (it becomes an owner of them), then new ones.

        The blocks count as filled: write their K and V with `write_tokens` before anything reads them.
        """
        if not is_count(num_tokens, 0):
            raise BlockError(f"num_tokens is {shown(num_tokens)}: give a whole number, 0 or more")
        table = self.share([[kept[layer_idx] for kept in shared] for layer_idx in range(self.num_layers)])
        try:
            for layer_idx, block_ids in enumerate(table):
                self._require(layer_idx, -(-num_tokens // self.block_size) - len(block_ids))
            for layer_idx, block_ids in enumerate(table):
                for start in range(len(block_ids) * self.block_size, num_tokens, self.block_size):
                    block_ids.append(self.allocate_block(layer_idx, start))
                    self._block_infos[block_ids[-1]].length = min(self.block_size, num_tokens - start)
        except BaseException:
            self.free(table)
            raise
        return table

    def share(self, block_ids_per_layer: BlockIdsPerLayer) -> BlockTable:
        """One more owner for each block (a fork, or a prefix hit). Returns the new owner."""
        self._require_shareable(block_ids_per_layer)
        infos = [(block_id, self.info(block_id)) for ids in block_ids_per_layer for block_id in ids]
        for block_id, info in infos:
            if info.owners == 0:
                del self._idle_block_ids[info.layer][block_id]
            info.owners += 1
        table = BlockTable(list(ids) for ids in block_ids_per_layer)
        table.cache = self.ref
        return table

    def _require_shareable(self, block_ids_per_layer: BlockIdsPerLayer) -> None:
        """Raise `BlockError` unless these are lists of this cache's blocks, one for each layer."""
        if not isinstance(block_ids_per_layer, Sequence) or len(block_ids_per_layer) != self.num_layers:
            raise BlockError(f"{shown(block_ids_per_layer)} is no block table of {self.num_layers} layers")
        if isinstance(block_ids_per_layer, BlockTable):
            self._require_mine(block_ids_per_layer)
        for layer_idx, ids in enumerate(block_ids_per_layer):
            known = isinstance(ids, list) and all(self.info(block_id).layer == layer_idx for block_id in ids)
            if not known or len(set(ids)) < len(ids):
                raise BlockError(f"{shown(ids)} shows a block twice, or one of another layer: share a block table")

    def _require_mine(self, table: BlockTable) -> None:
        if table.freed:
            raise BlockError("a block table is freed twice, or used after: its blocks may be another session's by now")
        if table.cache is not self.ref:
            raise BlockError("a block table of another cache, or a copy: give what `allocate` or `share` returned")

    def free(self, table: BlockTable) -> None:
        """An owner leaves; its lists are emptied. A block without owners is free again, or cached."""
        if not isinstance(table, BlockTable):
            raise BlockError(f"{shown(table)} is no block table: free what `allocate` or `share` gave")
        self._require_mine(table)
        if any(self.info(block_id).owners < 1 for ids in table for block_id in ids):
            raise BlockError("a block table shows blocks that it does not own: nothing is freed")
        table.freed = True
        for ids in table:
            while ids:  # from the end, so that the beginning of a sequence is the last to be reused or evicted
                self._drop_owner(ids.pop())

    def _drop_owner(self, block_id: int) -> None:
        info = self._block_infos[block_id]
        info.owners -= 1
        if info.owners == 0 and info.cached:
            self._idle_block_ids[info.layer][block_id] = None
        elif info.owners == 0:
            self._release(block_id)

    def length(self, table: BlockTable) -> int:
        """Tokens that the blocks of a session hold, or have been allocated for."""
        return self._end(table[0])

    def may_need_block(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether a session that grows to `num_tokens` tokens may need one more block, or a copy of its last one."""
        block_ids = table[0]
        return len(block_ids) * self.block_size < num_tokens or self.info(block_ids[-1]).owners > 1

    def block_indices(self, tables: Sequence[BlockTable]) -> torch.Tensor:
        """int64 [L, B, blocks] on the device: the physical block of each logical one, 0 past the last."""
        most = max(len(table[0]) for table in tables)
        rows = [
            [[self.block_index(block_id) for block_id in ids] + [0] * (most - len(ids)) for ids in lists]
            for lists in zip(*tables, strict=True)  # for each layer the lists of all sessions
        ]
        return index_tensor(rows, self.device)

    def _end(self, block_ids: list[int]) -> int:
        """The position behind the last token that a block list holds."""
        last = self.info(block_ids[-1]) if block_ids else None
        return last.start + last.length if last else 0

    def append_token(
        self, layer_idx: int, block_ids: list[int], key_new: torch.Tensor, value_new: torch.Tensor
    ) -> None:
        """Append the K and V [H, D] of one token of one session to one layer.

        An empty list gets its first block, a full last block is followed by a new one, and a last block that other
        sessions own too is copied first (copy-on-write), so that no sibling sees this token.
        """
        info = self.info(block_ids[-1]) if block_ids else None
        if info is None or info.length == self.block_size:
            start = info.start + info.length if info else 0
            block_ids.append(self.allocate_block(layer_idx, start))
        elif info.owners > 1:
            block_ids[-1] = self._copy_block(block_ids[-1])
        info = self._block_infos[block_ids[-1]]
        self.k_layers[layer_idx][info.block_index, :, info.length] = key_new
        self.v_layers[layer_idx][info.block_index, :, info.length] = value_new
        info.length += 1

    def _copy_block(self, block_id: int) -> int:
        """A private copy of a shared block; the caller leaves the owners of the original."""
        old = self._block_infos[block_id]
        copy_id = self.allocate_block(old.layer, old.start)  # may raise: nothing has changed yet
        new = self._block_infos[copy_id]
        for cache in (self.k_layers[old.layer], self.v_layers[old.layer]):
            cache[new.block_index, :, : old.length] = cache[old.block_index, :, : old.length]
        new.length = old.length
        self._drop_owner(block_id)
        return copy_id

    def can_append(self, tables: Sequence[BlockTable]) -> bool:
        """Whether the pool has the blocks that one more token of each session needs."""
        if self.num_available() >= len(tables):
            return True  # a token needs at most one block a layer
        return all(
            self.num_available(layer_idx) >= self.blocks_to_append(table[layer_idx] for table in tables)
            for layer_idx in range(self.num_layers)
        )

    def blocks_to_append(self, block_ids_list: Iterable[list[int]]) -> int:
        """How many new blocks one layer needs for one more token of each of these block lists."""
        needed = 0
        writers: dict[int, int] = {}  # shared last block -> how many of these lists are going to write into it
        for block_ids in block_ids_list:
            info = self._block_infos[block_ids[-1]] if block_ids else None
            if info is None or info.length == self.block_size:
                needed += 1
            elif info.owners > 1:
                writers[block_ids[-1]] = writers.get(block_ids[-1], 0) + 1
        # Each writer copies the shared block, but for the last owner, which then has it to itself.
        return needed + sum(min(n, self._block_infos[b].owners - 1) for b, n in writers.items())

    def audit(self, holders: Iterable[BlockIdsPerLayer], cached: Iterable[Kept] = ()) -> None:
        """Raise `BlockError` unless every block is in exactly one state and has the owners that `holders` show.

        `holders` are the block lists of all live sessions, `cached` is what the prefix cache keeps.
        """
        counted: dict[int, int] = {}
        for block_ids_per_layer in holders:
            if len({self._end(ids) for ids in block_ids_per_layer}) > 1:
                raise BlockError(f"the layers of {block_ids_per_layer} do not hold the same number of tokens")
            for layer_idx, ids in enumerate(block_ids_per_layer):
                if len(set(ids)) != len(ids) or any(i // self.num_blocks != layer_idx for i in ids):
                    raise BlockError(f"a block list of layer {layer_idx} shows a block twice, or one of another layer")
                self._check_order(ids)
                for block_id in ids:
                    counted[block_id] = counted.get(block_id, 0) + 1
        known = {block_id for kept in cached for block_id in kept}
        for block_id, info in self._block_infos.items():
            if info.owners != counted.pop(block_id, 0):
                raise BlockError(f"block {block_id} counts {info.owners} owners, its holders are others")
            if not info.cached == (block_id in known) == (block_id in self._kept) or not (info.owners or info.cached):
                raise BlockError(f"block {block_id} is neither held nor in the prefix cache, or cached unknown to it")
            if block_id != info.layer * self.num_blocks + info.block_index or not 0 <= info.length <= self.block_size:
                raise BlockError(f"block {block_id} does not match its description {info}")
        if counted:
            raise BlockError(f"blocks {sorted(counted)} are held and not in use")
        for layer_idx, free in enumerate(self._free_block_indices):
            idle = {b for b, i in self._block_infos.items() if i.layer == layer_idx and i.owners == 0}
            if idle != set(self._idle_block_ids[layer_idx]):
                raise BlockError(
                    f"layer {layer_idx}: without an owner are {idle}, not {self._idle_block_ids[layer_idx]}"
                )
            used = [i.block_index for i in self._block_infos.values() if i.layer == layer_idx]
            if not is_each_once([*free, *used], self.num_blocks):
                raise BlockError(f"layer {layer_idx}: free and used blocks do not add up to the pool")

    def _check_order(self, block_ids: list[int]) -> None:
        """Each block of a list begins where the one before it ends, and all but the last are full."""
        infos = [self.info(block_id) for block_id in block_ids]
        if any(info.start != number * self.block_size for number, info in enumerate(infos)):
            raise BlockError(f"blocks {block_ids} do not begin at every {self.block_size}th token")
        if any(info.length < self.block_size for info in infos[:-1]):
            raise BlockError(f"a block of {block_ids} before the last is not full")
