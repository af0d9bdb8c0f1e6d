"""The prefix cache: prompts that begin alike share the blocks of their beginning.

It is a tree of full blocks: an entry is known by its parent and its own tokens, so a match compares every token of the
prefix and a collision of hashes can do no harm. An entry stays while a session holds its blocks and, after that, until
the pool runs dry; then the least recently used entry goes first. (The idea of keeping blocks by their content is vLLM's
automatic prefix caching; the tree is SGLang's RadixAttention, with whole blocks as edges.)
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .blocks import BlockIdsPerLayer, KVBlockManager

ROOT = 0  # the serial number of the empty prefix


class PrefixKey(NamedTuple):
    parent: int  # serial number of the entry before this one
    tokens: tuple[int, ...]  # the block_size tokens of this block


class PrefixEntry(NamedTuple):
    serial: int
    block_ids: BlockIdsPerLayer  # one block a layer, [[id], [id], ...]


class PrefixCache:
    """Full prompt blocks by their content, least recently used first."""

    def __init__(self, kv: KVBlockManager) -> None:
        self.kv = kv
        self._entries: OrderedDict[PrefixKey, PrefixEntry] = OrderedDict()
        self._next_serial = ROOT + 1
        kv.evict = self._evict

    def lookup(self, token_ids: list[int]) -> BlockIdsPerLayer:
        """The blocks of the longest known prefix of `token_ids` that leaves at least one token to compute.

        Nobody owns them by this yet: pass them to `KVBlockManager.allocate` before anything else is allocated.
        """
        found: BlockIdsPerLayer = [[] for _ in range(self.kv.num_layers)]
        path: list[PrefixKey] = []
        parent = ROOT
        for tokens in self._blocks_of(token_ids[:-1]):
            key = PrefixKey(parent, tokens)
            entry = self._entries.get(key)
            if entry is None:
                break
            for ids, block in zip(found, entry.block_ids, strict=True):
                ids += block
            path.append(key)
            parent = entry.serial
        for key in reversed(path):  # a parent is always more recent than its children, so children go first
            self._entries.move_to_end(key)
        return found

    def insert(self, token_ids: list[int], block_ids_per_layer: BlockIdsPerLayer) -> None:
        """Remember the full blocks of a prompt whose K and V have been written."""
        parent = ROOT
        path: list[PrefixKey] = []
        for number, tokens in enumerate(self._blocks_of(token_ids)):
            key = PrefixKey(parent, tokens)
            blocks = [[ids[number]] for ids in block_ids_per_layer]
            entry = self._entries.get(key)
            if entry is None:
                entry = self._add(key, blocks)
            elif entry.block_ids != blocks:
                break  # computed twice at the same time: below it only blocks of the first one count
            path.append(key)
            parent = entry.serial
        for key in reversed(path):
            self._entries.move_to_end(key)

    def _add(self, key: PrefixKey, block_ids: BlockIdsPerLayer) -> PrefixEntry:
        entry = self._entries[key] = PrefixEntry(self._next_serial, block_ids)
        self._next_serial += 1
        for (block_id,) in block_ids:
            self.kv.info(block_id).cached = True
        return entry

    def _blocks_of(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        """The tokens of each full block."""
        size = self.kv.block_size
        return [tuple(token_ids[i : i + size]) for i in range(0, len(token_ids) - size + 1, size)]

    def _evict(self) -> BlockIdsPerLayer:
        """Forget the least recently used entry that no session holds, and hand its blocks over."""
        key = next(key for key, entry in self._entries.items() if not self._held(entry))
        return self._entries.pop(key).block_ids

    def _held(self, entry: PrefixEntry) -> bool:
        return self.kv.info(entry.block_ids[0][0]).owners > 0

    def entries(self) -> list[BlockIdsPerLayer]:
        return [entry.block_ids for entry in self._entries.values()]
