"""The oracle for rows that stay on the device: it plans, appends, advances, and chooses tokens as a decode step does.

The part is asked through its methods. The oracle itself writes K and V, and counts the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch

from ...config import EngineConfig, SamplingParams
from ...models.shape import Model
from ...request.session import InferenceSession
from .books import ONE_TABLE_BOOKS
from .input_judges import Inputs
from .interrupts import Lines, call_interrupted
from .layout import ONE_TABLE, place_and_copy
from .learner import Learner
from .oracle import Around, Oracle
from .pool import Sizes, Tracked
from .rows_judges import RowsJudge

METHODS = MappingProxyType(
    {
        "plan": ("sessions",),
        "advance": (),
        "asked": (),
        "holds": ("sessions",),
        "take": ("chosen", "token_ids"),
        "forget": (),
    }
)
# Of so many steps the host alone chooses the tokens in one; in another the list of chosen tokens is used again.
OFTEN, BY_THE_HOST, LIST_USED_AGAIN = 7, 5, 3


class RowsOracle(Oracle):
    """For a part `rows`. Every token is another number, and every session asks for other sampling parameters."""

    layout, books = ONE_TABLE, ONE_TABLE_BOOKS
    keeps_rows = True
    enough = None

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        super().__init__(learner, sizes)
        self._judge = RowsJudge(self)
        self._tokens_made = 0

    # -- sessions -----------------------------------------------------------------------------------------------------

    def start(self, length: int) -> Tracked:
        tracked = super().start(length)
        tracked.session.params = params_of(tracked.number)
        _say(tracked.session, [self.new_token(tracked) for _ in range(length + 1)])
        return tracked

    def fork(self, parent: Tracked) -> Tracked:
        child = super().fork(parent)
        child.session.params = params_of(child.number)
        _say(child.session, [*parent.session.token_ids[:-1], self.new_token(child)])
        return child

    def resize(self, tracked: Tracked, length: int) -> None:
        super().resize(tracked, length)
        _say(tracked.session, [self.new_token(tracked) for _ in range(length + 1)])

    def start_in(self, session: InferenceSession, length: int) -> Tracked:
        tracked = super().start_in(session, length)
        session.params = params_of(tracked.number)
        return tracked

    def new_token(self, tracked: Tracked) -> int:
        """A token that nobody has had."""
        self._tokens_made += 1
        self._judge.made(self._tokens_made, tracked)
        return self._tokens_made

    def say(self, tracked: Tracked) -> None:
        """A user puts another word in the place of a session's last token."""
        _say(tracked.session, [*tracked.session.token_ids[:-1], self.new_token(tracked)])

    # -- steps --------------------------------------------------------------------------------------------------------

    def make_room(self, batch: Sequence[Tracked]) -> None:
        place_and_copy(self.kv, [t.table for t in batch])
        self._written = True

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return ([t.session for t in batch],)

    def act(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> None:
        sessions = [t.session for t in batch]
        self.part.plan(sessions)
        self.part.advance()
        if self.part.holds(sessions):
            self.part.asked()
            new = [self.new_token(t) for t in batch]
            self.part.take(torch.tensor(new, device=self.kv.device), new)

    def step(self, *batch: Tracked, around: Around = nullcontext, host: bool | None = None) -> None:
        """One more token for each session of the batch, in this order; then everything is looked at.

        host: whether the host alone chooses the tokens, so that the rows do not take them; None: in some steps.
        """
        super().step(*batch, around=around)
        self._around = around
        try:
            self._choose(batch, self.steps % OFTEN == BY_THE_HOST if host is None else host)
        finally:
            self._around = nullcontext

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        self.plan(*batch)
        keys_and_values = self.next_tokens(batch)
        blocks, slots = (
            torch.tensor(numbers, device=self.kv.device)
            for numbers in ([t.table[-1] for t in batch], [t.length % self.sizes.block_size for t in batch])
        )
        for layer, (keys, values) in enumerate(zip(*keys_and_values.to(self.kv.device), strict=True)):
            self.kv.write_tokens(layer, blocks, slots, keys, values)
        for t in batch:
            t.table.num_tokens += 1
        self._ask("advance")
        return keys_and_values

    def plan(self, *batch: Tracked) -> None:
        """Ask for the inputs of a step of these sessions, which are then looked at."""
        sessions = [t.session for t in batch]
        given = Inputs(self, batch, {"sessions": sessions})
        planned = self._ask("plan", sessions)
        given.look()
        self._judge.look_at_inputs(planned, batch)

    def _choose(self, batch: Sequence[Tracked], host: bool) -> None:
        sessions = [t.session for t in batch]
        new = [self.new_token(t) for t in batch]
        told = list(new)
        self._look_at_others(batch)
        if self._ask("holds", sessions):  # if not, the step does without the rows
            self._judge.look_at_asked(self._ask("asked"), batch)
            if not host:
                chosen = torch.tensor(told, device=self.kv.device)
                self._ask("take", chosen, told)
        for t, token in zip(batch, new, strict=True):
            _say(t.session, [*t.session.token_ids, token])
        if self.steps % OFTEN == LIST_USED_AGAIN:  # the list is its maker's, who goes on with it
            self.say(batch[0])
            told[0] = batch[0].session.token_ids[-1]

    def _look_at_others(self, batch: Sequence[Tracked]) -> None:
        """Whoever is not in the rows, or not in this order, must not be taken for them."""
        others = [list(batch[:-1]), list(reversed(batch)), [t for t in self.sessions if t not in batch][:1]]
        for some in others:
            if some and some != list(batch):
                self.look_at_strangers(*some)

    def look_at_strangers(self, *batch: Tracked) -> None:
        """These sessions are not those of the last plan: the part has to say so."""
        self._judge.look_at_holds(bool(self._ask("holds", [t.session for t in batch])), batch)

    def _ask(self, method: str, *arguments: Any) -> Any:
        with self._around():
            return self.learner.call_method(self.part, method, *arguments)

    # -- steps that do not come to their end --------------------------------------------------------------------------

    def forget(self) -> None:
        """What a step does that has failed: from here on nothing is known to be on the device."""
        self._ask("forget")
        self._judge.forgotten()

    def break_off(self, batch: Sequence[Tracked], *, advanced: bool = False) -> None:
        """Begin a step of a batch whose forward fails. advanced: after the rows have been advanced."""
        self.make_room(batch)
        self.plan(*batch)
        if advanced:
            self._ask("advance")
        self.forget()

    def interrupt_plan(self, batch: Sequence[Tracked], at: int | None = None) -> Lines:
        """A plan with an interrupt before one of the learner's lines, as `interrupt`; then the step forgets."""
        lines = Lines(at)
        self.make_room(batch)
        call_interrupted(self.learner, lambda: self.part.plan([t.session for t in batch]), lines)
        self.forget()
        return lines


def params_of(number: int) -> SamplingParams:
    """What a session asks for; every third is greedy."""
    return SamplingParams(
        temperature=(0.0, 0.7, 1.3)[number % 3],
        top_k=number % 5,
        top_p=(1.0, 0.9, 0.35)[number % 4 % 3],
        seed=7 + number,
    )


def _say(session: InferenceSession, token_ids: list[int]) -> None:
    """Let a session's tokens be these: to the pool all of them are its prompt."""
    session.token_ids, session.prompt_ids = list(token_ids), list(token_ids)


def in_an_engine(learner: Learner) -> type:
    """The learner's class as a part of an engine, whose exceptions are told as in the scenarios."""

    class Guarded:
        def __init__(self, model: Model, kv: Any, config: EngineConfig) -> None:
            self.made = learner.build(model, kv, config)

        def plan(self, sessions: Sequence[InferenceSession]) -> Any:
            return learner.call_method(self.made, "plan", sessions)

        def advance(self) -> None:
            learner.call_method(self.made, "advance")

        def asked(self) -> Any:
            return learner.call_method(self.made, "asked")

        def holds(self, sessions: Sequence[InferenceSession]) -> bool:
            return learner.call_method(self.made, "holds", sessions)

        def take(self, chosen: torch.Tensor, token_ids: list[int]) -> None:
            learner.call_method(self.made, "take", chosen, token_ids)

        def forget(self) -> None:
            learner.call_method(self.made, "forget")

    return Guarded
