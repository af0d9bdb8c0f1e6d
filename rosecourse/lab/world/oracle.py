"""The oracle: it drives a pool, lets a part work in it step by step, and asks the judges after each step.

Every slot of every live session is read back through its block table and compared, owners are counted by walking the
tables, and whatever should not have changed must be what it was, bit by bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from ...errors import BlockError, KVCacheExhausted
from ...kv.blocks import KVBlockManager
from . import book_judges, number_judges
from .causes import Cause
from .fault import Fault, PartIsWrong
from .learner import Learner
from .pool import Before, Pool, Sizes, Tracked
from .tiny_gpt2 import random_gpt2


class Oracle(Pool, ABC):
    """A pool, and a part that works in it. Whatever is wrong raises `PartIsWrong`. Each kind of part has its own."""

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.learner = learner
        self.steps = 0
        self._as_made = dict(vars(self.kv))
        model = random_gpt2(sizes.layers, sizes.heads, sizes.head_dim, sizes.max_seq_len, sizes.device)
        self.part = learner.build(model, self.kv, sizes.config())
        book_judges.look_at_manager(self, self._as_made)

    # -- of a kind of part --------------------------------------------------------------------------------------------

    @abstractmethod
    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        """Let the part do its share of a step of a batch; returns the K and V that are in the cache after it,
        [2, L, B, H, D]."""

    @abstractmethod
    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        """What the part is called with. tokens: K and V of the step, [2, L, B, H, D]."""

    def lists_shown(self, batch: Sequence[Tracked]) -> list[tuple[int, int, list[int]]]:
        """(row of the batch, layer, the block list that the part has been shown last), where it has been shown one."""
        return []

    # -- what a scenario does -----------------------------------------------------------------------------------------

    def twin(self) -> Self:
        """Another pool with another part of the same class, as a second engine has them."""
        return type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1))

    def step(self, *batch: Tracked) -> None:
        """One more token for each session of the batch, in this order; then everything is looked at."""
        self.steps += 1
        before = self.before()
        room = [self.kv.num_available(layer) for layer in range(self.sizes.layers)]
        try:
            keys_and_values = self.work(batch)
        except KVCacheExhausted:
            raise PartIsWrong(self._too_many_blocks(batch, room)) from None
        for b, tracked in enumerate(batch):
            tracked.dense = torch.cat([tracked.dense, keys_and_values[:, :, b : b + 1]], dim=2)
            tracked.session.num_cached_tokens += 1
        self.look_at_everything(before, batch)

    def step_without_blocks(self, *batch: Tracked) -> None:
        """A step for which the pool has not enough blocks.

        An engine asks `can_append` before a step, so a part need not survive this: `KVCacheExhausted` has to come out,
        all that was in the cache has to stay, and every block has to have its owners, so that it can be given back.
        """
        self.steps += 1
        before = self.before()
        try:
            self.work(batch)
        except KVCacheExhausted:
            held = [t for t in self.sessions for ids in t.table if any(not self.in_use(i) for i in ids)]
            if held:
                raise PartIsWrong(_damaged(f"session {held[0].name} shows a block that is not in use")) from None
            number_judges.look_at_contents(self, before, ())
            book_judges.look_at_owners(self, before)
            return
        raise PartIsWrong(
            Fault(
                "the pool had no block left for the step, and no KVCacheExhausted came out of the part",
                reason="let the exception through: the engine has to know",
                cause=Cause.ROLLOVER_MISSED,
            )
        )

    def _too_many_blocks(self, batch: Sequence[Tracked], room: list[int]) -> Fault:
        """room: the blocks of each layer that were free before the step."""
        names = ", ".join(t.name for t in batch)
        empty = next((n for n in range(self.sizes.layers) if self.kv.num_available(n) == 0), 0)
        return Fault(
            f"the part asked for a block when none was left; the step of {names} needs no more than there were",
            (f"expected: at most {room[0]} new blocks in each layer", f"found: one more in layer {empty}"),
            "a block is taken that is not needed, such as a copy of a full block, or a copy for the last owner",
            cause=Cause.BOOKS_WRONG,
        )

    def look_at_everything(self, before: Before, batch: Sequence[Tracked]) -> None:
        """All that must hold after a step. Raises `PartIsWrong` with the first thing that does not.

        The order is that in which one fault explains the next: lists, lengths, contents, owners, and at last what
        nobody should have touched.
        """
        book_judges.look_at_manager(self, self._as_made)
        number_judges.look_at_guards(self)
        book_judges.look_at_sessions(self)
        book_judges.look_at_lists(self, before, batch)
        book_judges.look_at_shared_blocks(self, before, batch)
        book_judges.look_at_lengths(self, before, batch)
        number_judges.look_at_contents(self, before, batch)
        book_judges.look_at_owners(self, before)
        number_judges.look_at_the_rest(self, before, batch)
        try:
            KVBlockManager.audit(self.kv, [t.table for t in self.sessions])
        except BlockError as error:  # whatever the judges have no words for
            raise PartIsWrong(_damaged(f"the pool is damaged: {error}")) from None


def _damaged(what: str) -> Fault:
    return Fault(what, cause=Cause.BOOKS_WRONG)


class AppendOracle(Oracle):
    """For a part `kv_append`: it is called with the sessions, and for each layer with K and V, [B, H, D]."""

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        tokens = self.next_tokens(batch)
        self.learner.call(self.part, *self.arguments(batch, tokens))
        return tokens

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        keys, values = tokens.to(self.kv.device)
        if self.steps % 2:  # rows of V may be as far apart as they like: here they are views of another tensor
            wide = values.new_full((*values.shape[:2], self.sizes.heads + 1, self.sizes.head_dim), -1.0)
            wide[:, :, 1:] = values
            values = wide[:, :, 1:]
        return [t.session for t in batch], list(keys), list(values)
