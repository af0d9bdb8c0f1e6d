"""The oracle: a pool of blocks in which every number is known, and a part that works in it, watched after each step.

Beside the real `KVBlockManager` it keeps a dense copy: for each session the K and V of all its tokens. The part never
sees it. After each step every slot of every live session is read back through its block table and compared, owners are
counted by walking the tables, and whatever should not have changed must be what it was, bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...errors import BlockError, KVCacheExhausted
from ...kv.blocks import BlockTable, KVBlockInfo, KVBlockManager
from ...models.gpt2 import GPT2, GPT2Shape
from ...request.session import InferenceSession
from . import judges as reading
from . import table_judges as table_reading
from .fault import Fault, PartIsWrong
from .learner import Learner
from .tags import Tags, letter

NEVER_FULL = 10**6  # a gate that no batch reaches
GUARD = 4096  # numbers before and behind the cache of a layer, which nobody may write: a kernel can


@dataclass(frozen=True)
class Sizes:
    """How large the pool of a scenario is. gates: least batches for lesson 061's kernels, of any rows and of whole
    batches."""

    layers: int = 2
    heads: int = 2
    head_dim: int = 4
    block_size: int = 4
    num_blocks: int = 40
    max_seq_len: int = 32
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    gates: tuple[int, int | None] = (NEVER_FULL, None)
    seed: int = 0

    def config(self) -> EngineConfig:
        return EngineConfig(
            block_size=self.block_size,
            max_batch_size=16,
            max_seq_len=self.max_seq_len,
            num_blocks=self.num_blocks,
            prefix_cache=False,
            triton_kv_append_min_batch=self.gates[0],
            triton_kv_append_full_batch_min_batch=self.gates[1],
        )


@lru_cache
def random_gpt2(layers: int, heads: int, head_dim: int, context: int, device: str = "cpu") -> GPT2:
    """A tiny GPT-2 with seeded random weights, large ones: every token depends on its whole context."""
    shape = GPT2Shape(vocab_size=97, context=context, width=heads * head_dim, num_layers=layers, num_heads=heads)
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(size, generator=generator) * 0.4 for name, size in shape.parameters().items()}
    return GPT2(shape, {name: weight.to(device) for name, weight in weights.items()}, None, "random")


@dataclass(eq=False)
class Tracked:
    """A live session, and what the oracle knows of it. dense: [2, L, length, H, D], K and V of all its tokens."""

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
    """The pool before a step. caches: K and V, [2, L, num_blocks, H, block_size, D]; infos: of each block in use.
    gone: those of blocks that were in use before an earlier step, and their lengths."""

    caches: torch.Tensor
    infos: dict[int, KVBlockInfo]
    lists: dict[int, list[list[int]]]  # session number -> its block lists
    gone: list[tuple[KVBlockInfo, int]]


class Oracle:
    """A pool, the sessions in it, and a part of the kind `kv_append`. Whatever is wrong raises `PartIsWrong`."""

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        self.learner, self.sizes = learner, sizes
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
        self._as_made = dict(vars(self.kv))
        self._infos: dict[int, KVBlockInfo] = {}  # all that were in use before a step, by their addresses
        self.sessions: list[Tracked] = []  # live ones
        self.started = self.steps = 0
        self.shown: dict[tuple[int, int], list[list[int]]] = {}  # (session, layer) -> rows that were right so far
        self.looked_at: dict[tuple[int, int], list[int]] = {}  # (session, layer) -> the list of the last row
        model = random_gpt2(sizes.layers, sizes.heads, sizes.head_dim, sizes.max_seq_len, sizes.device)
        self.part = learner.build(model, self.kv, sizes.config())
        reading.look_at_manager(self, self._as_made)

    def _shuffle_free_blocks(self) -> None:
        """So that no block has the number that comes to mind: other ones in each layer."""
        for layer in range(self.sizes.layers):
            alone = [[[] for _ in range(self.sizes.layers)] for _ in range(self.sizes.num_blocks)]
            for lists in alone:
                lists[layer].append(self.kv.allocate_block(layer))
            random.Random(self.sizes.seed + layer).shuffle(alone)
            for lists in alone:
                self.kv.free(BlockTable(lists))

    def twin(self) -> Oracle:
        """Another pool with another part of the same class, as a second engine has them."""
        return type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1))

    # -- what a scenario does -----------------------------------------------------------------------------------------

    def start(self, length: int) -> Tracked:
        """A new session of `length` tokens, as a prefill leaves it."""
        table = self.kv.allocate(length)
        session = InferenceSession([1] * max(length, 1), SamplingParams())
        session.table, session.num_cached_tokens = table, length
        dense = self.tags.of([self.started] * length, list(range(length)), self.sizes.dtype)
        self.sessions.append(Tracked(self.started, session, dense))
        self.started += 1
        self._prefill(self.sessions[-1])
        return self.sessions[-1]

    def _prefill(self, tracked: Tracked) -> None:
        positions = torch.arange(tracked.length)
        for layer, ids in enumerate(tracked.table):
            blocks = torch.tensor([self.index(i) for i in ids], dtype=torch.int64)[positions // self.kv.block_size]
            keys, values = tracked.dense[:, layer].to(self.kv.device)
            slots = positions % self.kv.block_size
            self.kv.write_tokens(layer, blocks.to(self.kv.device), slots.to(self.kv.device), keys, values)

    def fork(self, parent: Tracked) -> Tracked:
        """A sibling that shares all blocks."""
        session = InferenceSession(parent.session.prompt_ids, SamplingParams())
        session.table = self.kv.share(parent.table)
        session.num_cached_tokens = parent.length
        self.sessions.append(Tracked(self.started, session, parent.dense))
        self.started += 1
        return self.sessions[-1]

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

    def step(self, *batch: Tracked) -> None:
        """One more token for each session of the batch, in this order; then everything is looked at."""
        self.steps += 1
        before = self.before()
        room = [self.kv.num_available(layer) for layer in range(self.sizes.layers)]
        try:
            keys_and_values = self.work(batch)
        except KVCacheExhausted:
            raise PartIsWrong(self.too_many_blocks(batch, before, room)) from None
        for b, tracked in enumerate(batch):
            tracked.dense = torch.cat([tracked.dense, keys_and_values[:, :, b : b + 1]], dim=2)
            tracked.session.num_cached_tokens += 1
        self.look_at_everything(before, batch)

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """Let the part append the next tokens of a batch; returns their K and V, [2, L, B, H, D]."""
        tokens = self.next_tokens(batch)
        self.learner.call(self.part, *self.arguments(batch, tokens))
        return tokens

    def next_tokens(self, batch: Sequence[Tracked]) -> torch.Tensor:
        return self.tags.of([t.number for t in batch], [t.length for t in batch], self.sizes.dtype)

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        """What the part is called with."""
        keys, values = tokens.to(self.kv.device)
        if self.steps % 2:  # rows of V may be as far apart as they like: here they are views of another tensor
            wide = values.new_full((*values.shape[:2], self.sizes.heads + 1, self.sizes.head_dim), -1.0)
            wide[:, :, 1:] = values
            values = wide[:, :, 1:]
        return [t.session for t in batch], list(keys), list(values)

    def step_without_blocks(self, *batch: Tracked) -> None:
        """A step for which the pool has not enough blocks.

        An engine asks `can_append` before a step, so this is not to be survived: `KVCacheExhausted` has to come out,
        all that was in the cache has to stay, and every block has to have its owners, so that it can be given back.
        """
        self.steps += 1
        before = self.before()
        try:
            self.work(batch)
        except KVCacheExhausted:
            held = [t for t in self.sessions for ids in t.table if any(not self.in_use(i) for i in ids)]
            if held:
                raise PartIsWrong(Fault(f"session {held[0].name} shows a block that is not in use")) from None
            reading.look_at_contents(self, before, ())
            reading.look_at_owners(self, before)
            return
        raise PartIsWrong(
            Fault(
                "the pool had no block left for the step, and no KVCacheExhausted came out of the part",
                reason="let the exception through: the engine has to know",
            )
        )

    # -- what the readers ask -----------------------------------------------------------------------------------------

    def index(self, block_id: int) -> int:
        return block_id % self.sizes.num_blocks

    def in_use(self, block_id: int) -> bool:
        return self.info(block_id) is not None

    def info(self, block_id: int) -> KVBlockInfo | None:
        """The manager's own record of a block; None for a free one."""
        return self.kv._block_infos.get(block_id)

    def caches(self) -> torch.Tensor:
        """K and V as they are, on the host: [2, L, num_blocks, H, block_size, D]."""
        return torch.stack([torch.stack(self.kv.k_layers), torch.stack(self.kv.v_layers)]).cpu()

    def unchanged_lists(self, batch: Sequence[Tracked]) -> list[list[int]]:
        """The block lists of a batch of which the part knows already, where it makes tables."""
        return []

    def before(self) -> Before:
        infos = {block_id: replace(info) for block_id, info in self.kv._block_infos.items()}
        lists = {t.number: [list(ids) for ids in t.table] for t in self.sessions}
        in_use = {id(info): info for info in self.kv._block_infos.values()}
        gone = [(info, info.length) for at, info in self._infos.items() if at not in in_use]
        self._infos |= in_use
        return Before(self.caches(), infos, lists, gone)

    def blocks_needed(self, length: int) -> int:
        return -(-length // self.sizes.block_size)

    def too_many_blocks(self, batch: Sequence[Tracked], before: Before, room: list[int]) -> Fault:
        names = ", ".join(t.name for t in batch)
        return Fault(
            f"the part asked for a block when none was left; the step of {names} needs no more than there were",
            (
                f"expected: at most {room[0]} new blocks in each layer",
                f"found: one more in layer {self._empty_layer()}",
            ),
            "a block is taken that is not needed, such as a copy of a full block, or a copy for the last owner",
        )

    def _empty_layer(self) -> int:
        return next((n for n in range(self.sizes.layers) if self.kv.num_available(n) == 0), 0)

    def look_at_everything(self, before: Before, batch: Sequence[Tracked]) -> None:
        """All that must hold after a step. Raises `PartIsWrong` with the first thing that does not."""
        reading.look_at_manager(self, self._as_made)
        reading.look_at_guards(self)
        reading.look_at_sessions(self)
        reading.look_at_lists(self, before, batch)
        reading.look_at_shared_blocks(self, before, batch)
        reading.look_at_lengths(self, before)
        reading.look_at_contents(self, before, batch)
        reading.look_at_owners(self, before)
        reading.look_at_the_rest(self, before, batch)
        try:
            KVBlockManager.check(self.kv, [t.table for t in self.sessions])
        except BlockError as error:  # whatever the looks above have no words for
            raise PartIsWrong(Fault(f"the pool is damaged: {error}")) from None


class TableOracle(Oracle):
    """The same for a part of the kind `block_tables`: it only reads, and the manager itself appends the tokens."""

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        self.look(*batch)
        tokens = self.next_tokens(batch)
        for layer in range(self.sizes.layers):
            rows = list(enumerate(batch))
            for b, tracked in reversed(rows) if layer % 2 else rows:  # so that no layer's list tells another's
                self.kv.append_token(layer, tracked.table[layer], tokens[0, layer, b], tokens[1, layer, b])
        return tokens

    def next_blocks(self, *indices: int) -> None:
        """Let these blocks, which are free, be the next that are taken, in this order: so many ends come to that."""
        for free in self.kv._free_block_indices:
            free[:] = [index for index in free if index not in indices] + list(reversed(indices))

    def resize(self, tracked: Tracked, length: int) -> None:
        """A session that holds no blocks has another number of tokens when it is computed again."""
        numbers = [tracked.number] * length, list(range(length)), self.sizes.dtype
        tracked.dense, tracked.session.num_cached_tokens = self.tags.of(*numbers), length

    def free_and_reuse(self, tracked: Tracked) -> InferenceSession:
        """The session goes, and another is made at its place in memory, as Python does by chance: `id` is the same.

        So are those of its table and of its lists, which show nothing yet. If somebody still holds the old ones, they
        lie elsewhere.
        """
        at_session, at_table, prompt, params = id(tracked.session), id(tracked.table), [1], SamplingParams()
        at_lists = [id(ids) for ids in tracked.table]
        self.free(tracked)
        table = _made_at(at_table, BlockTable)
        table.extend(_made_at(address, list) for address in at_lists)
        tracked.session = None
        session = _made_at(at_session, lambda: InferenceSession(prompt, params))
        session.table = table
        return session

    def start_in(self, session: InferenceSession, length: int) -> Tracked:
        """A session that has been made before gets the blocks of `length` tokens."""
        tracked = self.start(length)
        for ids, taken in zip(session.block_ids_per_layer, tracked.table, strict=True):
            ids += taken
        session.num_cached_tokens = length
        session.prompt_ids, session.token_ids = tracked.session.prompt_ids, tracked.session.token_ids
        tracked.session = session
        return tracked

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return ([t.session for t in batch],)

    def unchanged_lists(self, batch: Sequence[Tracked]) -> list[list[int]]:
        return [ids for t in batch for layer, ids in enumerate(t.table) if self.looked_at.get((t.number, layer)) == ids]

    def look(self, *batch: Tracked) -> Any:
        """Ask the part for the tables of a batch; returns what it returned, which is right."""
        before = self.before()
        tables = self.learner.call(self.part, [t.session for t in batch])
        table_reading.look_at_lists_read(self, before.lists)
        self.look_at_everything(before, ())
        table_reading.look_at_tables(self, tables, batch)
        self.looked_at |= {(t.number, layer): list(ids) for t in batch for layer, ids in enumerate(t.table)}
        return tables

    def look_again(self, tables: Any, *batch: Tracked) -> None:
        """What was returned has to stay as it is until the same part is called again."""
        table_reading.look_at_tables(self, tables, batch, " (returned earlier by another part, and not right any more)")


def _storage(layers: Sequence[torch.Tensor]) -> torch.Tensor:
    """NaN for the caches of all layers, each between two guards: [L, GUARD + numbers + GUARD]."""
    size = (len(layers), layers[0].numel() + 2 * GUARD)
    return torch.full(size, float("nan"), dtype=layers[0].dtype, device=layers[0].device)


def _made_at(address: int, make: Callable[[], Any]) -> Any:
    """An object at an address in memory that has just become free; after some attempts, one that lies elsewhere."""
    made = [make()]
    while id(made[-1]) != address and len(made) < 1000:
        made.append(make())
    return made[-1]
