"""What a cache must hold and a scheduler must do, said in plain Python that shares no code with the engine.

`ShadowSession` knows the tokens of one request and, for each (layer, position), the K and V that its token writes.
`ShadowPool` reads K and V back through the block tables, and counts the holders of each block by walking the sessions.
"""

import numpy as np

from tests.support.late_device import LateCache
from tests.support.layouts import layout_of
from tests.support.tag_model import CONTEXT, EOS, HEAD_DIM, HEADS, LAYERS, PRIME, VOCAB


class ShadowSession:
    """One request by itself: the tokens that it has, the one that comes next, and its K and V."""

    is_fork = False

    def __init__(self, prompt: list[int], max_new_tokens: int, stop_on_eos: bool, sick: set) -> None:
        self.prompt, self.max_new_tokens, self.stop_on_eos = list(prompt), max_new_tokens, stop_on_eos
        self.sick = sick  # as of `TagModel`
        self.kv = np.full((2, LAYERS, CONTEXT, HEADS, HEAD_DIM), -1.0, dtype=np.float32)
        self.tokens: list[int] = []
        self.tags: list[list[int]] = [[] for _ in range(LAYERS)]
        for token in prompt:
            self.add(token)

    def add(self, token: int) -> None:
        """A token is in the context: what it writes, and what comes after it (`TagModel`, in whole numbers)."""
        position = len(self.tokens)
        self.tokens.append(token)
        tag = (37 * token + 101 * position) % PRIME
        for layer, tags in enumerate(self.tags):
            tags.append(tag)
            for head in range(HEADS):
                place = layer * HEADS + head
                self.kv[0, layer, position, head] = (position, position**2, tag, token + 100 + place)
                self.kv[1, layer, position, head] = (tag, token, position, position + 200 + place)
            looked_up = tags[(5 * tag + layer) % (position + 1)]
            tag = (3 * tag + 7 * sum(tags) + 11 * looked_up + 13) % PRIME
        self.next_token = None if (token, position) in self.sick else tag % VOCAB

    def generate(self) -> str | None:
        """Take the next token; returns the reason if it is the last one."""
        token = self.next_token
        self.add(token)
        if token in EOS and self.stop_on_eos:
            return "stop"
        return "length" if len(self.tokens) >= len(self.prompt) + self.max_new_tokens else None

    def fork(self, last_token: int, max_new_tokens: int) -> "ShadowSession":
        """One that has the same tokens, but for the last."""
        other = ShadowSession([*self.tokens[:-1], last_token], max_new_tokens, self.stop_on_eos, self.sick)
        other.prompt, other.is_fork = list(self.prompt), True
        return other


def blocks_of(num_tokens: int, block_size: int) -> int:
    return (num_tokens + block_size - 1) // block_size


class ShadowPool:
    """The tensors of one engine's cache, and what must be true of its blocks."""

    def __init__(self, kv) -> None:
        self.kv, self.layout = kv, layout_of(kv)
        self.caches = [[layer.numpy() for layer in layers] for layers in (kv.k_layers, kv.v_layers)]
        self.cached: set = set()
        self.evictions = 0
        self.used = [set(range(kv.num_blocks)) for _ in range(LAYERS)]
        self.poison([set() for _ in range(LAYERS)])

    def poison(self, used: list[set[int]]) -> None:
        """NaN into the blocks that came free: whoever reads a slot before it is written gets caught (hazard 16)."""
        for layer, (before, now) in enumerate(zip(self.used, used, strict=True)):
            for block in before - now:
                self._do(self._spoil, layer, block)
        self.used = used

    def _do(self, work, *args) -> None:
        """Now, or when a device that is late has done what it was told before."""
        if isinstance(self.kv, LateCache):
            self.kv.late.do(work, *args)
        else:
            work(*args)

    def _spoil(self, layer: int, block: int) -> None:
        for cache in self.caches:
            cache[layer][block] = np.nan

    def check(self, holders: list[tuple], cached: list, others: list, in_flight=lambda session: False) -> None:
        """holders: (session, its ShadowSession) of all that hold blocks; cached: the prefix cache's entries.

        others: tables of holders whose K and V do not matter. in_flight: whether a step in flight has a session.
        """
        tables = [session.block_ids_per_layer for session, _ in holders]
        held = self._count_holders([*tables, *others])
        for session, shadow in holders:
            self._read_back(session, shadow, in_flight(session))
        entries = set(cached)
        assert len(entries) == len(cached), "a block is remembered twice"
        self.evictions += len(self.cached - entries)
        self.cached = entries
        used = [set(owners) for owners in held]
        for entry in entries:
            for layer, block in enumerate(self.layout.kept(entry)):
                used[layer].add(block)
        for layer in range(LAYERS):
            assert sorted(self.layout.free(layer)) == sorted(set(range(self.kv.num_blocks)) - used[layer]), (
                f"layer {layer}: free blocks"
            )
        self.poison(used)

    def _count_holders(self, tables: list) -> list[dict[int, int]]:
        """For each layer, the number of tables that show a block; asserts that the pool counts the same."""
        held: list[dict[int, int]] = [{} for _ in range(LAYERS)]
        for table in tables:
            for layer, ids in enumerate(self.layout.lists(table)):
                for block in ids:
                    held[layer][block] = held[layer].get(block, 0) + 1
        for layer, owners in enumerate(held):
            to_be_had = self.kv.num_blocks - len(owners)
            assert self.layout.available(layer) == to_be_had, f"layer {layer}: blocks to be had"
            for block, count in owners.items():
                found = self.layout.info(layer, block).owners
                assert found == count, f"layer {layer}, block {block}: {found} owners counted, {count} tables show it"
        return held

    def _read_back(self, session, shadow: ShadowSession, in_flight: bool) -> None:
        """Position p lies in slot p % block_size of block p // block_size of the table, and it is this session's."""
        size = self.kv.block_size
        filled = len(shadow.tokens) - 1 + in_flight  # K and V of the last token are written by the next step
        length = session.num_cached_tokens
        if session.awaits_prefill:  # in the middle of its prompt
            filled = len(shadow.tokens)
            assert length < filled
        else:
            assert length == filled
        self.layout.check_filled(session.table, filled)
        for ids in self.layout.lists(session.table):
            assert len(ids) == blocks_of(filled, size), f"{len(ids)} blocks for {filled} tokens"
        if in_flight and isinstance(self.kv, LateCache):
            return  # a device that is late has not written them yet
        position = np.arange(length)
        for layer, ids in enumerate(self.layout.lists(session.table)):
            blocks = np.array(ids)[position // size]
            for name, caches, expected in zip("KV", self.caches, shadow.kv, strict=True):
                found = caches[layer][blocks, :, position % size]
                if not np.array_equal(found, expected[layer, :length]):
                    wrong = int((found != expected[layer, :length]).any((1, 2)).argmax())
                    raise AssertionError(
                        f"{name} of layer {layer}, position {wrong} of {shadow.tokens}: found {found[wrong].tolist()}, "
                        f"expected {expected[layer, wrong].tolist()}"
                    )
