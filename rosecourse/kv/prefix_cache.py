"""The prefix cache: prompts that begin alike share the blocks of their beginning.

It is a tree of full blocks: an entry is known by its parent and its own tokens, so a match compares every token. An
entry stays until the pool runs dry; then the one that was left first goes first. A session leaves the end of its
prompt before the beginning, so no entry goes before those below it. (vLLM keeps blocks by their content; the tree is
SGLang's RadixAttention.)
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any, NamedTuple

ROOT = 0  # the serial number of the empty prefix


class PrefixKey(NamedTuple):
    parent: int  # serial number of the entry before this one
    tokens: tuple[int, ...]  # the block_size tokens of this block


class PrefixEntry(NamedTuple):
    serial: int
    block: Hashable  # as its cache names it: one for all layers, or one for each


class PrefixCache:
    """Full prompt blocks by their content. `kv` knows which of them nobody holds, and since when."""

    def __init__(self, kv: Any) -> None:
        self.kv = weakref.proxy(kv)  # which knows this one: the two must not keep each other
        self._entries: dict[PrefixKey, PrefixEntry] = {}
        self._keys: dict[Hashable, PrefixKey] = {}  # of the entry that a block belongs to
        self._next_serial = ROOT + 1
        kv.forget = self._forget

    def lookup(self, token_ids: list[int]) -> list[Hashable]:
        """The blocks of the longest known prefix that leaves a token to compute: for `kv.allocate`, at once."""
        known = []
        parent = ROOT
        for tokens in self._blocks_of(token_ids[:-1]):
            entry = self._entries.get(PrefixKey(parent, tokens))
            if entry is None:
                break
            known.append(entry.block)
            parent = entry.serial
        return known

    def insert(self, token_ids: list[int], table: Any) -> None:
        """Remember the full blocks of a prompt whose K and V have been written."""
        parent = ROOT
        for tokens, block in zip(self._blocks_of(token_ids), self.kv.blocks_of(table), strict=False):
            key = PrefixKey(parent, tokens)
            entry = self._entries.get(key)
            if entry is None:
                if block in self._keys:  # below an entry that has been discarded, where nobody finds it
                    self._forget(block)
                entry = self._entries[key] = PrefixEntry(self._next_serial, block)
                self._next_serial += 1
                self._keys[block] = key
                self.kv.keep(block)
            elif entry.block != block:
                break  # computed twice at the same time: below it only blocks of the first one count
            parent = entry.serial

    def _blocks_of(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        """The tokens of each full block."""
        size = self.kv.block_size
        return [tuple(token_ids[i : i + size]) for i in range(0, len(token_ids) - size + 1, size)]

    def discard(self, table: Any) -> None:
        """Forget the entries among a session's blocks, because what was written there is not to be used again."""
        for block in self.kv.blocks_of(table):
            if block in self._keys:
                self._forget(block)
                self.kv.unkeep(block)

    def _forget(self, block: Hashable) -> None:
        del self._entries[self._keys.pop(block)]

    def entries(self) -> list[Hashable]:
        """The blocks that are remembered."""
        return [entry.block for entry in self._entries.values()]
