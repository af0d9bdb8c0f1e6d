"""A pool of blocks in which every number is known: what the judges read, and what the oracle drives.

Beside the real `KVBlockManager` it keeps a dense copy: for each session the K and V of all its tokens. A part never
sees the copy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...config import EngineConfig, SamplingParams
from ...kv.blocks import BlockTable, KVBlockInfo, KVBlockManager
from ...request.session import InferenceSession
from .tags import Tags, letter

NEVER_FULL = 10**6  # a gate that no batch reaches
GUARD = 4096  # numbers before and behind the cache of a layer, which nobody may write: a kernel can


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
    def table(self) -> BlockTable:
        return self.session.block_ids_per_layer

    @property
    def length(self) -> int:
        return self.dense.shape[2]


@dataclass(frozen=True)
class Before:
    """The pool as it was before a step.

    caches: K and V, [2, L, num_blocks, H, block_size, D]. infos: a copy for each block that was in use.
    lists: session number -> its block lists. gone: the infos of blocks that were in use before an earlier step and were
    freed since, each with its length.
    """

    caches: torch.Tensor
    infos: dict[int, KVBlockInfo]
    lists: dict[int, list[list[int]]]
    gone: list[tuple[KVBlockInfo, int]]


class Pool:
    """A `KVBlockManager` and the sessions in it. The cache lies between guards and begins as NaN.

    storage: for K and for V the memory of all layers with the guards, [L, GUARD + numbers + GUARD].
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.tags = Tags(sizes.layers, 40, sizes.heads, sizes.max_seq_len, sizes.head_dim)
        if sizes.dtype == torch.float16:  # which holds whole numbers up to 2048
            self.tags = replace(self.tags, sessions=3, first=1)
        self.kv = KVBlockManager(
            num_layers=sizes.layers,
            num_kv_heads=sizes.heads,
            head_dim=sizes.head_dim,
            block_size=sizes.block_size,
            num_blocks=sizes.num_blocks,
            dtype=sizes.dtype,
            device=torch.device(sizes.device),
        )
        self.storage = [_storage(layers) for layers in (self.kv.k_layers, self.kv.v_layers)]
        shape = self.kv.k_layers[0].shape
        self.kv.k_layers, self.kv.v_layers = (
            tuple(layer[GUARD:-GUARD].view(shape) for layer in storage) for storage in self.storage
        )
        self._shuffle_free_blocks()
        self.sessions: list[Tracked] = []  # live ones
        self.started = 0
        self._infos: dict[int, KVBlockInfo] = {}  # address -> each info that was in use before a step

    def _shuffle_free_blocks(self) -> None:
        """So that no block has the number that comes to mind, and each layer has other ones."""
        for layer in range(self.sizes.layers):
            free = self.kv.free_blocks(layer)
            free.sort()
            random.Random(self.sizes.seed + layer).shuffle(free)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int) -> Tracked:
        """A new session of `length` tokens, as a prefill leaves it."""
        table = self.kv.allocate(length)
        session = InferenceSession([1] * max(length, 1), SamplingParams())
        session.table, session.num_cached_tokens = table, length
        dense = self.tags.of([self.started] * length, list(range(length)), self.sizes.dtype)
        tracked = self._track(session, dense)
        self._prefill(tracked)
        return tracked

    def fork(self, parent: Tracked) -> Tracked:
        """A sibling that shares all blocks."""
        session = InferenceSession(parent.session.prompt_ids, SamplingParams())
        session.table = self.kv.share(parent.table)
        session.num_cached_tokens = parent.length
        return self._track(session, parent.dense)

    def free(self, tracked: Tracked) -> None:
        """The session gives its blocks back."""
        self.sessions.remove(tracked)
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
        positions = torch.arange(tracked.length)
        for layer, ids in enumerate(tracked.table):
            blocks = torch.tensor([self.index(i) for i in ids], dtype=torch.int64)[positions // self.kv.block_size]
            keys, values = tracked.dense[:, layer].to(self.kv.device)
            slots = positions % self.kv.block_size
            self.kv.write_tokens(layer, blocks.to(self.kv.device), slots.to(self.kv.device), keys, values)

    def next_tokens(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """K and V of the next token of each session of a batch, [2, L, B, H, D]."""
        return self.tags.of([t.number for t in batch], [t.length for t in batch], self.sizes.dtype)

    def append_next_tokens(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """Let the manager append the next tokens, where no part does; returns their K and V, [2, L, B, H, D]."""
        tokens = self.next_tokens(batch)
        for layer in range(self.sizes.layers):
            rows = list(enumerate(batch))
            for b, tracked in reversed(rows) if layer % 2 else rows:  # so that no layer's list tells another's
                self.kv.append_token(layer, tracked.table[layer], tokens[0, layer, b], tokens[1, layer, b])
        return tokens

    # -- what judges ask ----------------------------------------------------------------------------------------------

    def index(self, block_id: int) -> int:
        """Where a block lies in its layer."""
        return self.kv.block_index(block_id)

    def info(self, block_id: int) -> KVBlockInfo | None:
        """The manager's own record of a block; None for a free one."""
        return self.kv.blocks_in_use.get(block_id)

    def info_in_use(self, block_id: int) -> KVBlockInfo:
        """The same of a block that has to be in use. Raises `BlockError` for a free one."""
        return self.kv.info(block_id)

    def in_use(self, block_id: int) -> bool:
        return self.info(block_id) is not None

    def blocks_needed(self, length: int) -> int:
        return -(-length // self.sizes.block_size)

    def caches(self) -> torch.Tensor:
        """K and V as they are, on the host: [2, L, num_blocks, H, block_size, D]."""
        return torch.stack([torch.stack(self.kv.k_layers), torch.stack(self.kv.v_layers)]).cpu()

    def before(self) -> Before:
        """The pool as it is now, for a comparison after the next step."""
        infos = {block_id: replace(info) for block_id, info in self.kv.blocks_in_use.items()}
        lists = {t.number: [list(ids) for ids in t.table] for t in self.sessions}
        in_use = {id(info): info for info in self.kv.blocks_in_use.values()}
        gone = [(info, info.length) for at, info in self._infos.items() if at not in in_use]
        self._infos |= in_use
        return Before(self.caches(), infos, lists, gone)


def _storage(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """NaN for the caches of all layers, each between two guards: [L, GUARD + numbers + GUARD]."""
    size = (len(layers), layers[0].numel() + 2 * GUARD)
    return torch.full(size, float("nan"), dtype=layers[0].dtype, device=layers[0].device)
