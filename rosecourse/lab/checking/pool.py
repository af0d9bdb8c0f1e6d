"""A cache in which every number is known, a part that is built for it, and the sessions in it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...config import EngineConfig, SamplingParams
from ...kv.pool import KVPool
from ...request.session import InferenceSession
from .layout import layout_of
from .stories import told_sizes

GUARD = 4096  # numbers before each cache and behind it
FIRST = 16385  # as float32: float16 and bfloat16 would round it
PATTERNS = range(1024, 31024)  # bits of 16-bit floats, all of them finite
MOST_SESSIONS, MOST_SHUFFLED, MOST_OTHERS = 140, 1000, 200
Lists = list[list[int]]  # for each layer the ids of a session's blocks


@dataclass(frozen=True)
class Sizes:
    """Of a cache and its engine; the defaults are what shrinking goes for. shuffle: 0 is blocks that come in order."""

    block_size: int = 4
    layers: int = 1
    heads: int = 1
    head_dim: int = 2
    num_blocks: int = 12
    max_seq_len: int = 32
    dtype: str = "float32"
    any_batch: int = 10**6  # rows from which on a kernel takes a batch
    whole_batch: int | None = None  # the same of a whole batch at one slot
    shuffle: int = 0
    rows: int = 4  # of the largest batch, for a part that is built for it
    __str__ = told_sizes

    def config(self) -> EngineConfig:
        return EngineConfig(
            block_size=self.block_size,
            max_batch_size=MOST_SESSIONS + 20,
            max_seq_len=self.max_seq_len,
            num_blocks=self.num_blocks,
            prefix_cache=False,
            triton_kv_append_min_batch=self.any_batch,
            triton_kv_append_full_batch_min_batch=self.whole_batch,
        )

    def model(self) -> Any:
        """As much of a model as a part is built with."""
        shape = {"num_kv_heads": self.heads, "num_heads": self.heads, "head_dim": self.head_dim}
        return SimpleNamespace(shape=SimpleNamespace(**shape, num_layers=self.layers))


class Tokens:
    """The tokens of a story. shape: [2 (K and V), L, H, D] of each."""

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self._made = 0
        self._known: dict[str, Tensor] = {}  # [2, L, H, D] each

    def of(self, wanted: Iterable[tuple[str, int]]) -> Tensor:
        """New K and V, [2, L, N, H, D], of N tokens: (session, position) of each."""
        names = [f"{session}{position}" for session, position in wanted]
        count = torch.Size(self.shape).numel()
        numbers = torch.arange(self._made * count, (self._made + len(names)) * count)
        self._made += len(names)
        if self.dtype.itemsize == 2:
            made = (numbers % len(PATTERNS) + PATTERNS[0]).to(torch.int16).view(self.dtype)
        else:
            made = (numbers + FIRST).to(self.dtype)
        made = made.view(len(names), *self.shape)
        self._known.update(zip(names, made.unbind(), strict=True))
        return made.permute(1, 2, 0, 3, 4)

    def name(self, slot: Tensor, which: int, layer: int) -> str:
        """Whose number fills a slot, [H, D], of K (0) or V (1) in a layer. Only what differs is said: `A3` or
        `V of A3, layer 1`; `.` is empty, `?` is nobody's."""
        if slot.isnan().all():
            return "."
        for name, token in self._known.items():
            for k_or_v in (which, 1 - which):
                for other in range(self.shape[1]):
                    if torch.equal(token[k_or_v, other], slot):
                        kind = "" if k_or_v == which else f"{'KV'[k_or_v]} of "
                        return kind + name + ("" if other == layer else f", layer {other}")
        return "?"


class Live:
    """A live session and the truth about it: `dense`, K and V of all its tokens, [2, L, length, H, D]."""

    def __init__(self, name: str, session: InferenceSession, dense: Tensor) -> None:
        self.name, self.session, self.dense = name, session, dense
        self.number = -1  # of a session that samples
        self.placed = False  # whether it has room for its next token since a step that did not come to its end

    @property
    def length(self) -> int:
        return self.dense.shape[2]


class Pool:
    """A cache of a class, and what lives in it. `memory`, [2, numbers], is both caches with their guards."""

    def __init__(self, cache: type[KVPool], sizes: Sizes, device: str = "cpu") -> None:
        self.sizes, self.dice = sizes, random.Random(sizes.shuffle)
        self.dtype = getattr(torch, sizes.dtype)
        s = sizes
        self.kv: Any = cache(
            num_layers=s.layers,
            num_kv_heads=s.heads,
            head_dim=s.head_dim,
            block_size=s.block_size,
            num_blocks=s.num_blocks,
            dtype=self.dtype,
            device=torch.device(device),
        )
        self.layout = layout_of(self.kv)
        self.shape = (s.layers, s.num_blocks, s.heads, s.block_size, s.head_dim)
        self.memory = torch.full((2, torch.Size(self.shape).numel() + 2 * GUARD), float("nan"), dtype=self.dtype)
        if self.dtype.itemsize == 2:
            self.memory.view(torch.int16).fill_(-1)  # the NaN that torch makes of every other
        self.memory = self.memory.to(device)
        self.layout.put_caches(self.kv, *self.caches_in(self.memory))
        self.tokens = Tokens((2, s.layers, s.heads, s.head_dim), self.dtype)
        self.live: list[Live] = []
        self._started = 0
        self._was_at: tuple[Any, int] | None = None  # the table that was freed last

    def caches_in(self, memory: Tensor) -> Tensor:
        """[2, L, num_blocks, H, block_size, D] of a memory such as `self.memory`."""
        return memory[:, GUARD:-GUARD].view(2, *self.shape)

    @property
    def caches(self) -> Tensor:
        return self.caches_in(self.memory)

    def lists(self, live: Live) -> Lists:
        return [list(ids) for ids in self.layout.id_lists(self.kv, live.session.table)]

    def indices(self, ids: list[int]) -> list[int]:
        return [block % self.sizes.num_blocks for block in ids]

    def blocks_for(self, length: int) -> int:
        return -(-length // self.sizes.block_size)

    def blocks_needed(self, batch: list[Live]) -> int:
        """New blocks, in each layer, that one more token of each of these sessions needs."""
        return int(self.layout.blocks_to_append(self.kv, [live.session.table for live in batch]))

    def start(self, length: int) -> Live:
        """A session with so many tokens, as a prefill leaves it."""
        name = self._name()
        session = InferenceSession([1] * max(length, 1), SamplingParams())
        live = Live(name, session, self.tokens.of((name, position) for position in range(length)))
        self.live.append(live)
        self.shuffle_free()
        self._fill(live)
        return live

    def fork(self, parent: Live) -> Live:
        session = InferenceSession([1], SamplingParams())
        session.table, session.num_cached_tokens = self.kv.share(parent.session.table), parent.length
        child = Live(self._name(), session, parent.dense)
        child.placed = parent.placed
        self.live.append(child)
        return child

    def free(self, live: Live) -> None:
        self.live.remove(live)
        self._was_at = type(live.session.table), id(live.session.table)
        self.kv.free(live.session.table)
        live.session.table = None

    def again(self, live: Live, length: int, same_last: bool) -> None:
        """A session that was preempted is computed again on other blocks, perhaps with other tokens.

        same_last: its last block is the one that it had, where that can be: a signature that looks at it alone errs.
        """
        had = [ids[-1] % self.sizes.num_blocks if ids else None for ids in self.lists(live)]
        self.free(live)
        live.placed = False
        if length != live.length:
            live.dense = self.tokens.of((f"{live.name}'", position) for position in range(length))
        self.live.append(live)
        self.shuffle_free()
        blocks = self.blocks_for(length)
        for free, last in zip(self.layout.free_lists(self.kv), had, strict=False):
            if same_last and blocks > 1 and last in free and len(free) > blocks:
                free.remove(last)
                free.insert(len(free) - blocks + 1, last)
                free[-1], free[0] = free[0], free[-1]
        self._fill(live)

    def shuffle_free(self) -> None:
        for free in self.layout.free_lists(self.kv) if self.sizes.shuffle else ():
            if len(free) <= MOST_SHUFFLED:
                self.dice.shuffle(free)
            else:  # it would take long
                first = self.dice.randrange(len(free))
                free[:] = free[first:] + free[:first]

    def _name(self) -> str:
        self._started += 1
        return chr(ord("A") + self._started - 1) if self._started <= 26 else f"S{self._started}_"

    def _fill(self, live: Live) -> None:
        others = self._others_until_an_address_is_free()
        live.session.table, live.session.num_cached_tokens = self.kv.allocate(live.length), live.length
        del others
        self.write(self.memory, [(live, 0)])

    def _others_until_an_address_is_free(self) -> list[object]:
        """Objects of the kind of a table, until the next one comes to lie where the one that was freed last has lain: a
        part that knows tables by their addresses errs then, and not by chance."""
        others: list[object] = []
        if self._was_at:
            kind, address = self._was_at
            for _ in range(MOST_OTHERS):
                others.append(kind.__new__(kind))
                if id(others[-1]) == address:
                    others.pop()
                    break
        return others

    def write(self, memory: Tensor, places: list[tuple[Live, int]]) -> None:
        """The tokens of sessions, each from a position on, into a memory, where their tables say."""
        caches, size = self.caches_in(memory), self.sizes.block_size
        positions = [(n, p) for n, (live, first) in enumerate(places) for p in range(first, live.length)]
        lists = [self.lists(live) for live, _ in places]
        slots = [p % size for _, p in positions]
        for layer in range(self.sizes.layers if positions else 0):
            blocks = self.indices([lists[n][layer][p // size] for n, p in positions])
            tokens = torch.cat([live.dense[:, layer, first:] for live, first in places], 1).transpose(0, 1)
            caches[:, layer, torch.tensor(blocks), :, torch.tensor(slots)] = tokens.to(memory.device)
