"""A pool of blocks in which every number is known: what the judges read, and what the oracle drives.

Beside the real cache it keeps a dense copy: for each session the K and V of all its tokens. A part never
sees the copy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...request.session import InferenceSession
from .layout import PER_LAYER, IdLists, Layout
from .tags import Tags, letter

NEVER_FULL = 10**6  # a gate that no batch reaches


@dataclass(frozen=True)
class Sizes:
    """How large a pool is. gates: the least batches for the Triton kernels that append, one for any rows and one for
    whole batches (None: the same)."""

    layers: int = 2
    heads: int = 2
    head_dim: int = 4
    block_size: int = 4
    num_blocks: int = 40
    max_seq_len: int = 32
    max_batch_size: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    gates: tuple[int, int | None] = (NEVER_FULL, None)
    seed: int = 0

    @property
    def guard(self) -> int:
        """Numbers before and behind the cache of a layer, which nobody may write: a kernel can. At least a block, which
        is as far as a kernel gets whose row of lanes is too long."""
        return max(4096, self.heads * self.block_size * self.head_dim)

    def config(self) -> EngineConfig:
        """The configuration of an engine that has such a pool."""
        return EngineConfig(
            block_size=self.block_size,
            max_batch_size=self.max_batch_size,
            max_seq_len=self.max_seq_len,
            num_blocks=self.num_blocks,
            prefix_cache=False,
            triton_kv_append_min_batch=self.gates[0],
            triton_kv_append_full_batch_min_batch=self.gates[1],
        )


@dataclass(eq=False)
class Tracked:
    """A live session, and what is known of it. dense: [2, L, length, H, D], K and V of all its tokens."""

    number: int
    session: InferenceSession
    dense: torch.Tensor

    @property
    def name(self) -> str:
        return letter(self.number)

    @property
    def table(self) -> Any:
        return self.session.table

    @property
    def length(self) -> int:
        return self.dense.shape[2]


@dataclass(frozen=True)
class Before:
    """The pool as it was before a step.

    infos: a copy for each block that was in use. lists: session number -> for each layer its block list. gone: the
    infos of blocks that were in use before an earlier step and were freed since, each with its length, or 0. read:
    returns `caches`.
    """

    infos: dict[int, Any]
    lists: dict[int, list[list[int]]]
    gone: list[tuple[Any, int]]
    read: Callable[[], torch.Tensor]

    @cached_property
    def caches(self) -> torch.Tensor:
        """K and V, on the host: [2, L, num_blocks, H, block_size, D]. Until the next step."""
        return self.read()


class Pool:
    """A cache and the sessions in it. It lies between guards and begins as NaN. layout: what kind of cache it is."""

    layout: Layout = PER_LAYER
    forked = False  # whether a session has ever had a sibling
    freed: Set[int] = frozenset()  # the numbers of sessions that have given their blocks back, for once at least

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.tags = Tags(sizes.layers, sizes.heads, sizes.head_dim, sizes.dtype)
        self.kv: Any = self.layout.cache(
            num_layers=sizes.layers,
            num_kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            block_size=sizes.block_size,
            num_blocks=sizes.num_blocks,
            dtype=sizes.dtype,
            device=torch.device(sizes.device),
        )
        self._memory = [self._guarded(layers[0]) for layers in (self.kv.k_layers, self.kv.v_layers)]
        self.layout.put_caches(self.kv, *map(self._within_guards, self._memory))
        self._known = [bits(memory).clone() for memory in self._memory]  # as they were after the last look
        self._written = False  # by the pool itself since then
        self._shuffle_free_blocks()
        self.sessions: list[Tracked] = []  # live ones
        self.started = 0
        self._infos: dict[int, Any] = {}  # address -> each info that was in use before a step

    def _guarded(self, layer: torch.Tensor) -> torch.Tensor:
        """NaN for the caches of all layers, one behind the other as an engine has them, between two guards."""
        memory = layer.new_full((self.sizes.layers * layer.numel() + 2 * self.sizes.guard,), float("nan"))
        if memory.element_size() == 2:
            bits(memory).fill_(-1)  # the NaN that torch makes of others, when it copies them by way of float32
        return memory

    def _within_guards(self, memory: torch.Tensor) -> torch.Tensor:
        """A view of the caches of all layers, [L, num_blocks, H, block_size, D]."""
        sizes = self.sizes
        shape = (sizes.layers, sizes.num_blocks, sizes.heads, sizes.block_size, sizes.head_dim)
        return memory[sizes.guard : -sizes.guard].view(shape)

    @property
    def storage(self) -> list[list[torch.Tensor]]:
        """For K and for V the memory of each layer; with the guard before it for the first, behind it for the last."""
        guard, last = self.sizes.guard, self.sizes.layers - 1
        size = self.kv.k_layers[0].numel()
        ranges = [
            (n * size + (guard if n else 0), (n + 1) * size + (2 if n == last else 1) * guard) for n in range(last + 1)
        ]
        return [[memory[start:end] for start, end in ranges] for memory in self._memory]

    def _shuffle_free_blocks(self) -> None:
        """So that no block has the number that comes to mind, and each layer has other ones."""
        for n, free in enumerate(self.layout.free_lists(self.kv)):
            free.sort()
            random.Random(self.sizes.seed + n).shuffle(free)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int) -> Tracked:
        """A new session of `length` tokens, as a prefill leaves it."""
        table = self.kv.allocate(length)
        session = InferenceSession([1] * max(length, 1), SamplingParams())
        session.table, session.num_cached_tokens = table, length
        dense = self.tags.of([self.started] * length, range(length))
        tracked = self._track(session, dense)
        self._prefill(tracked)
        return tracked

    def fork(self, parent: Tracked) -> Tracked:
        """A sibling that shares all blocks."""
        self.forked = True
        session = InferenceSession(parent.session.prompt_ids, SamplingParams())
        session.table = self.kv.share(parent.table)
        session.num_cached_tokens = parent.length
        return self._track(session, parent.dense)

    def free(self, tracked: Tracked) -> None:
        """The session gives its blocks back."""
        self.sessions.remove(tracked)
        self.freed = {*self.freed, tracked.number}
        self.kv.free(tracked.table)
        tracked.session.table = None

    def compute_again(self, tracked: Tracked) -> None:
        """The same session on other blocks, as after a preemption; it has been freed before."""
        tracked.session.table = self.kv.allocate(tracked.length)
        self._prefill(tracked)
        self.sessions.append(tracked)

    def _track(self, session: InferenceSession, dense: torch.Tensor) -> Tracked:
        self.sessions.append(Tracked(self.started, session, dense))
        self.started += 1
        return self.sessions[-1]

    def _prefill(self, tracked: Tracked) -> None:
        self._written = True
        positions = torch.arange(tracked.length)
        for layer, ids in enumerate(self.lists(tracked)):
            blocks = torch.tensor([self.index(i) for i in ids], dtype=torch.int64)[positions // self.kv.block_size]
            keys, values = tracked.dense[:, layer].to(self.kv.device)
            slots = positions % self.kv.block_size
            self.kv.write_tokens(layer, blocks.to(self.kv.device), slots.to(self.kv.device), keys, values)

    def next_tokens(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """K and V of the next token of each session of a batch, [2, L, B, H, D]."""
        return self.tags.of([t.number for t in batch], [t.length for t in batch])

    def append_next_tokens(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """Let the manager append the next tokens, where no part does; returns their K and V, [2, L, B, H, D]."""
        tokens = self.next_tokens(batch)
        for layer in range(self.sizes.layers):
            rows = list(enumerate(batch))
            for b, tracked in reversed(rows) if layer % 2 else rows:  # so that no layer's list tells another's
                self.kv.append_token(layer, tracked.table[layer], tokens[0, layer, b], tokens[1, layer, b])
        return tokens

    # -- what judges ask ----------------------------------------------------------------------------------------------

    def lists(self, tracked: Tracked) -> IdLists:
        """For each layer the ids of the blocks that a session shows."""
        return self.layout.id_lists(self.kv, tracked.table)

    def index(self, block_id: int) -> int:
        """Where a block lies in its layer."""
        return block_id % self.sizes.num_blocks

    def info(self, block_id: int) -> Any | None:
        """The manager's own record of a block; None for a free one."""
        return self.layout.info(self.kv, block_id)

    def info_in_use(self, block_id: int) -> Any:
        """The same of a block that has to be in use. Raises `BlockError` for a free one."""
        return self.layout.info_in_use(self.kv, block_id)

    def in_use(self, block_id: int) -> bool:
        return self.info(block_id) is not None

    def blocks_needed(self, length: int) -> int:
        return -(-length // self.sizes.block_size)

    def has_room(self, length: int) -> bool:
        """Whether a new session of so many tokens gets its blocks."""
        return self.kv.num_available() >= self.blocks_needed(length)

    def caches(self) -> torch.Tensor:
        """K and V as they are, on the host: [2, L, num_blocks, H, block_size, D]."""
        return torch.stack([torch.stack(self.kv.k_layers), torch.stack(self.kv.v_layers)]).cpu()

    def _known_caches(self) -> torch.Tensor:
        """The same as they were after the last look."""
        return torch.stack([self._within_guards(known.view(self.sizes.dtype)) for known in self._known]).cpu()

    def before(self) -> Before:
        """The pool as it is now, for a comparison after the next step."""
        infos = {block_id: replace(info) for block_id, info in self.layout.in_use(self.kv).items()}
        lists = {t.number: [list(ids) for ids in self.lists(t)] for t in self.sessions}
        in_use = {id(info): info for info in self.kv.blocks_in_use.values()}
        gone = [(info, getattr(info, "length", 0)) for at, info in self._infos.items() if at not in in_use]
        self._infos |= in_use
        if self._written:
            self.accept()
        return Before(infos, lists, gone, self._known_caches)

    # -- every number at once -----------------------------------------------------------------------------------------

    def accept(self) -> None:
        """Take all numbers for right as they are now."""
        for known, memory in zip(self._known, self._memory, strict=True):
            known.copy_(bits(memory))
        self._written = False

    def holds_only(self, batch: Sequence[Tracked], tokens: torch.Tensor | None) -> bool:
        """Whether all numbers, the guards' too, are those of the last look, but for the last token of each session of a
        batch. tokens: its K and V, [2, L, B, H, D]."""
        if tokens is None:
            return all(torch.equal(known, bits(now)) for known, now in zip(self._known, self._memory, strict=True))
        device = self.kv.device
        layers = torch.arange(self.sizes.layers, device=device).unsqueeze(1)
        blocks = torch.tensor([[self.index(ids[-1]) for ids in self.lists(t)] for t in batch]).t()
        slots = torch.tensor([(t.length - 1) % self.sizes.block_size for t in batch]).to(device)
        at = (layers, blocks.to(device), slice(None), slots)
        known = [self._within_guards(numbers) for numbers in self._known]
        old = [numbers[at] for numbers in known]
        for numbers, new in zip(known, bits(tokens.to(device)), strict=True):
            numbers[at] = new
        right = self.holds_only(batch, None)
        if not right:
            for numbers, before in zip(known, old, strict=True):
                numbers[at] = before
        return right

    # -- what happens by chance ---------------------------------------------------------------------------------------

    def next_blocks(self, *indices: int) -> None:
        """Let these free blocks be the next that each layer takes, in this order."""
        chosen = set(indices)
        for free in self.layout.free_lists(self.kv):
            free[:] = [index for index in free if index not in chosen] + list(reversed(indices))

    def resize(self, tracked: Tracked, length: int) -> None:
        """A session that holds no blocks has another number of tokens when it is computed again."""
        tracked.dense = self.tags.of([tracked.number] * length, range(length))
        tracked.session.num_cached_tokens = length

    def free_and_reuse(self, tracked: Tracked) -> InferenceSession:
        """The session goes, and another is made at its place in memory, as Python does by chance: `id` is the same.

        So are those of its table and of its lists, which show nothing yet. If somebody still holds the old ones, the
        new ones lie elsewhere.
        """
        at_session, at_table, prompt, params = id(tracked.session), id(tracked.table), [1], SamplingParams()
        at_lists = [id(ids) for ids in self.layout.inner_lists(tracked.table)]
        self.free(tracked)
        table = _made_at(at_table, self.layout.table)
        table.extend(_made_at(address, list) for address in at_lists)
        del tracked.session  # the last reference to it
        session = _made_at(at_session, lambda: InferenceSession(prompt, params))
        session.table = table
        return session

    def start_in(self, session: InferenceSession, length: int) -> Tracked:
        """A session that has been made before gets the blocks of `length` tokens."""
        tracked = self.start(length)
        self.layout.fill(session.table, tracked.table)
        session.table.cache = self.kv.ref
        session.num_cached_tokens = length
        session.prompt_ids, session.token_ids = tracked.session.prompt_ids, tracked.session.token_ids
        tracked.session = session
        return tracked


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """The same numbers as integers: NaN equals itself."""
    return numbers.view(torch.int16 if numbers.element_size() == 2 else torch.int32)


def _made_at(address: int, make: Callable[[], Any]) -> Any:
    """An object at an address in memory that has just become free; after some attempts, one that lies elsewhere."""
    made = [make()]
    while id(made[-1]) != address and len(made) < 1000:
        made.append(make())
    return made[-1]
