"""The oracle: it drives a pool, lets a part work in it step by step, and asks the judges after each step.

Every slot of every live session is read back through its block table and compared, owners are counted by walking the
tables, and whatever should not have changed must be what it was, bit by bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Self

import torch

from ...errors import BlockError, KVCacheExhausted
from . import book_judges, number_judges
from .books import PER_LAYER_BOOKS, Books
from .causes import Cause
from .fault import Fault, PartIsWrong
from .input_judges import Inputs
from .interrupts import Lines, call_interrupted
from .learner import Learner
from .ops_log import NO_OPS, OpsSeen
from .pool import Before, Pool, Sizes, Tracked
from .tiny_gpt2 import random_gpt2

Around = Callable[[], AbstractContextManager[Any]]


class Oracle(Pool, ABC):
    """A pool, and a part that works in it. Whatever is wrong raises `PartIsWrong`. Each kind of part has its own.

    books: the judges of the books, which are of the same kind as `layout`.
    """

    books: Books = PER_LAYER_BOOKS

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.learner = learner
        self.steps = 0
        self._around: Around = nullcontext
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

    def make_room(self, batch: Sequence[Tracked]) -> None:
        """What a step does for a batch before it calls the part; nothing in most lessons."""

    def act(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> Any:
        """Let the part do its share of a step, unwatched; returns what it returned."""
        return self.part(*self.arguments(batch, tokens))

    def ops_seen(self) -> OpsSeen:
        """What the operations of the last step cost; nothing where a part is not made of them."""
        return NO_OPS

    # -- what a scenario does -----------------------------------------------------------------------------------------

    def twin(self) -> Self:
        """Another pool with another part of the same class, as a second engine has them."""
        return type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1))

    def call(self, batch: Sequence[Tracked], *arguments: Any) -> Any:
        """What the part returns. Raises `PartIsWrong` if its inputs are then not what they were."""
        named = dict(zip(self.learner.methods["__call__"], arguments, strict=True))
        inputs = Inputs(self, batch, named)
        try:
            with self._around():
                returned = self.learner.call(self.part, *arguments)
        except KVCacheExhausted:
            inputs.look()
            raise
        inputs.look()
        return returned

    def step(self, *batch: Tracked, around: Around = nullcontext) -> None:
        """One more token for each session of the batch, in this order; then everything is looked at.

        around: makes a context in which the part, and nothing else, is called.
        """
        self.steps += 1
        self.make_room(batch)
        before = self.before()
        room = self.kv.num_available()
        self._around = around
        try:
            keys_and_values = self.work(batch)
        except KVCacheExhausted:
            raise PartIsWrong(self._too_many_blocks(batch, room)) from None
        finally:
            self._around = nullcontext
        for b, tracked in enumerate(batch):
            tracked.dense = torch.cat([tracked.dense, keys_and_values[:, :, b : b + 1]], dim=2)
            tracked.session.num_cached_tokens += 1
        self.look_at_everything(before, batch, keys_and_values)

    def step_without_blocks(self, *batch: Tracked) -> None:
        """A step for which the pool has not enough blocks.

        An engine asks `can_append` before a step, so a part need not survive this: `KVCacheExhausted` has to come out,
        what others have in the cache has to stay, and every block has to have its owners, so that it can be given back.
        The sessions of the batch are then freed, as those that an engine preempts; they can be computed again.
        """
        self.steps += 1
        before = self.before()
        try:
            self.work(batch)
        except KVCacheExhausted:
            self._look_after_exhaustion(before, batch)
            return
        raise PartIsWrong(
            Fault(
                "the pool had no block left for the step, and no KVCacheExhausted came out of the part",
                reason="let the exception through: the engine has to know",
                cause=Cause.ROLLOVER_MISSED,
            )
        )

    def _look_after_exhaustion(self, before: Before, batch: Sequence[Tracked]) -> None:
        held = [t for t in self.sessions for ids in self.lists(t) if any(not self.in_use(i) for i in ids)]
        if held:
            raise PartIsWrong(_damaged(f"session {held[0].name} shows a block that is not in use"))
        book_judges.look_at_manager(self, self._as_made)
        number_judges.look_at_guards(self)
        self.books.owners(self, before)
        for tracked in batch:
            self.free(tracked)
        number_judges.look_at_contents(self, before, ())
        self.books.owners(self, before)
        self.accept()

    def interrupt(self, *batch: Tracked, at: int | None = None) -> Lines:
        """A step of a batch with an interrupt before one of the learner's lines; the lines to which it comes.

        at: the place of that line in their order. Nothing of the pool can be relied on afterwards. Raises `PartIsWrong`
        unless the interrupt comes out of the part.
        """
        self.steps += 1
        lines = Lines(at)
        self.make_room(batch)
        tokens = self.next_tokens(batch)
        call_interrupted(self.learner, lambda: self.act(batch, tokens), lines)
        return lines

    def _too_many_blocks(self, batch: Sequence[Tracked], room: int) -> Fault:
        """room: the blocks of a layer that were free before the step."""
        names = ", ".join(t.name for t in batch)
        return Fault(
            f"the part asked for a block when none was left; the step of {names} needs no more than there were",
            self.layout.one_block_more(self.kv, room),
            "a block is taken that is not needed, such as a copy of a full block, or a copy for the last owner",
            cause=Cause.BOOKS_WRONG,
        )

    def look_at_everything(self, before: Before, batch: Sequence[Tracked], tokens: torch.Tensor | None = None) -> None:
        """All that must hold after a step. Raises `PartIsWrong` with the first thing that does not.

        tokens: K and V of the batch's new tokens, [2, L, B, H, D]; None for no batch.
        """
        book_judges.look_at_manager(self, self._as_made)
        book_judges.look_at_sessions(self)
        if not self._all_in_order(before, batch, tokens):
            self._look_closely(before, batch)
            self.accept()

    def _all_in_order(self, before: Before, batch: Sequence[Tracked], tokens: torch.Tensor | None) -> bool:
        """One look at everything, which is quick where nothing is wrong."""
        try:
            self.layout.audit(self.kv, [t.table for t in self.sessions])
            return self.books.in_order(self, before, batch) and self.holds_only(batch, tokens)
        except Exception:  # lists that cannot even be read: the judges will say so
            return False

    def _look_closely(self, before: Before, batch: Sequence[Tracked]) -> None:
        """Judge by judge: one of them has something to tell, unless something was changed that may be changed.

        The order is that in which one fault explains the next: lists, lengths, contents, owners, and at last what
        nobody should have touched.
        """
        number_judges.look_at_guards(self)
        self.books.look(self, before, batch)
        number_judges.look_at_contents(self, before, batch)
        self.books.owners(self, before)
        number_judges.look_at_the_rest(self, before, batch)
        try:
            self.layout.audit(self.kv, [t.table for t in self.sessions])
        except BlockError as error:  # whatever the judges have no words for
            raise PartIsWrong(_damaged(f"the pool is damaged: {error}")) from None


def _damaged(what: str) -> Fault:
    return Fault(what, cause=Cause.BOOKS_WRONG)
