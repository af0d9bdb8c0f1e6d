"""The prefix cache: prompts that begin alike share the blocks of their beginning.

It is a tree of full blocks: an entry is known by its parent and its own tokens, so a match compares every token of the
prefix and a collision of hashes can do no harm. An entry stays while a session holds its blocks and, after that, until
the pool runs dry; then the entry that was left first goes first. A session leaves the end of its prompt before the
beginning, so that no entry goes before those below it. (The idea of keeping blocks by their content is vLLM's
automatic prefix caching; the tree is SGLang's RadixAttention, with whole blocks as edges.)
"""

from __future__ import annotations

from typing import NamedTuple

from .blocks import BlockIdsPerLayer
from .layout import CacheLayout

ROOT = 0  # the serial number of the empty prefix


class PrefixKey(NamedTuple):
    parent: int  # serial number of the entry before this one
    tokens: tuple[int, ...]  # the block_size tokens of this block


class PrefixEntry(NamedTuple):
    serial: int
    block_ids: BlockIdsPerLayer  # one block a layer, [[id], [id], ...]


class PrefixCache:
    """Full prompt blocks by their content; the cache knows which of them nobody holds, and since when.

    Its tables are lists of block ids for each layer (`BlockIdsPerLayer`).
    """

    def __init__(self, kv: CacheLayout) -> None:
        self.kv = kv
        self._entries: dict[PrefixKey, PrefixEntry] = {}
        self._keys: dict[int, PrefixKey] = {}  # of the entry that a block belongs to
        self._next_serial = ROOT + 1
        kv.forget = self._forget

    def lookup(self, token_ids: list[int]) -> BlockIdsPerLayer:
        """The blocks of the longest known prefix of `token_ids` that leaves at least one token to compute.

        Nobody owns them by this yet: pass them to `KVBlockManager.allocate` before anything else is allocated.
        """
        known: BlockIdsPerLayer = [[] for _ in range(self.kv.num_layers)]
        parent = ROOT
        for tokens in self._blocks_of(token_ids[:-1]):
            entry = self._entries.get(PrefixKey(parent, tokens))
            if entry is None:
                break
            for ids, block in zip(known, entry.block_ids, strict=True):
                ids += block
            parent = entry.serial
        return known

    def num_tokens(self, blocks: BlockIdsPerLayer) -> int:
        """How many tokens the blocks that `lookup` gave hold."""
        return len(blocks[0]) * self.kv.block_size

    def insert(self, token_ids: list[int], block_ids_per_layer: BlockIdsPerLayer) -> None:
        """Remember the full blocks of a prompt whose K and V have been written."""
        parent = ROOT
        for number, tokens in enumerate(self._blocks_of(token_ids)):
            key = PrefixKey(parent, tokens)
            blocks = [[ids[number]] for ids in block_ids_per_layer]
            entry = self._entries.get(key)
            if entry is None:
                entry = self._add(key, blocks)
            elif entry.block_ids != blocks:
                break  # computed twice at the same time: below it only blocks of the first one count
            parent = entry.serial

    def _add(self, key: PrefixKey, block_ids: BlockIdsPerLayer) -> PrefixEntry:
        entry = self._entries[key] = PrefixEntry(self._next_serial, block_ids)
        self._next_serial += 1
        for (block_id,) in block_ids:
            self.kv.info(block_id).cached = True
            self._keys[block_id] = key
        return entry

    def _blocks_of(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        """The tokens of each full block."""
        size = self.kv.block_size
        return [tuple(token_ids[i : i + size]) for i in range(0, len(token_ids) - size + 1, size)]

    def discard(self, table: BlockIdsPerLayer) -> None:
        """Forget the entries among a session's blocks, because what was written there is not to be used again."""
        for block_id in table[0]:
            if block_id in self._keys:
                for (forgotten,) in self._forget(block_id):
                    self.kv.info(forgotten).cached = False

    def _forget(self, block_id: int) -> BlockIdsPerLayer:
        """Forget the entry of a block; returns the blocks that it had."""
        entry = self._entries.pop(self._keys[block_id])
        for (forgotten,) in entry.block_ids:
            del self._keys[forgotten]
        return entry.block_ids

    def entries(self) -> list[BlockIdsPerLayer]:
        return [entry.block_ids for entry in self._entries.values()]
