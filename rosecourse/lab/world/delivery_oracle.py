"""The oracle of deliveries: readers who come, sleep, are woken and go, and hand-overs of what steps have made."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import torch

from ...config import SamplingParams
from ...engine.stepper import End, NewTokenItem
from ...request.session import InferenceSession
from . import delivery_judges as judges
from .causes import Cause
from .delivery_guard import GuardedDelivery
from .delivery_log import DeliveryLog, LoggedBox, WakesSeen
from .learner import Learner
from .mailboxes import Handed
from .oracle import Around, Oracle
from .pool import Sizes, Tracked
from .tags import letter

PROMPT = [1]


class DeliveryOracle(Oracle):
    """For a part `delivery`. Its steps are hand-overs; there is no model, and no cache."""

    def __init__(self, learner: Learner, sizes: Sizes) -> None:
        self.learner, self.sizes, self.steps = learner, sizes, 0
        self.kv: Any = SimpleNamespace(k_layers=(), v_layers=())
        self.log = DeliveryLog()
        self.sessions: list[Tracked] = []
        self.started = 0
        self._boxes: dict[int, LoggedBox] = {}  # number of a session -> where its items go
        self._readers = self._words = 0
        self.delivery = GuardedDelivery(learner, sizes.config())
        self.part = self.delivery.made

    # -- requests and their readers -----------------------------------------------------------------------------------

    def reader(self, kind: str = "asleep") -> LoggedBox:
        """A reader without a request. kind: as of a `LoggedBox`."""
        self._readers += 1
        return LoggedBox(letter(self._readers - 1), kind, self.log)

    def start(self, length: int = 1, reader: LoggedBox | None = None) -> Tracked:
        """A new request, of a reader of its own or of one that has others."""
        session = InferenceSession(list(PROMPT), SamplingParams(max_new_tokens=10**6))
        self._boxes[self.started] = self.reader() if reader is None else reader
        return self._track(session, torch.empty(2, 0, 1, 0, 0))

    def readers_of(self, batch: Sequence[Tracked]) -> list[str]:
        """The names of the readers of some requests."""
        return [self._boxes[t.number].name for t in batch]

    # -- hand-overs ---------------------------------------------------------------------------------------------------

    def step(self, *batch: Tracked, around: Around = nullcontext) -> None:
        """A token for each request of the batch, in this order, and then the judges look."""
        self.hand([(self._boxes[t.number], self._token(t)) for t in batch], around)

    def end(self, *ending: Tracked, others: Sequence[Tracked] = ()) -> None:
        """The last tokens of some requests, each with its end behind it; others have a token, too."""
        handed: Handed = []
        for t in (*others, *ending):
            box = self._boxes[t.number]
            handed.append((box, self._token(t, "length" if t in ending else None)))
            handed += [(box, End(t.session))] if t in ending else []
        self._forget(ending)
        self.hand(handed)

    def cancel(self, *batch: Tracked) -> None:
        """Requests end without a further token."""
        handed = [(self._boxes[t.number], End(t.session)) for t in batch]
        self._forget(batch)
        self.hand(handed)

    def hand(self, handed: Handed, around: Around = nullcontext) -> None:
        """Hand over pairs of mailbox and item. around: makes a context in which the part is called."""
        self.steps += 1
        given = list(handed)
        self.log.begin(hand_over=True)
        with around():
            self.delivery.hand_over(given)
        judges.look_at_items(self.log, handed, given, self.delivery.flush)
        given.clear()  # whoever reads it later comes too late
        judges.look_at_turns(self.log)

    def flush(self) -> None:
        """No step will come soon."""
        self.log.begin(hand_over=False)
        self.delivery.flush()
        judges.look_at_flush(self.log)

    def gone(self, handed: Handed) -> None:
        """Some readers get their last items. When they have been woken, nobody holds their mailboxes any more."""
        self.hand(handed)
        self.flush()
        names = {id(box): box.name for box, _ in handed}
        held = [weakref.ref(box) for box, _ in handed]
        handed.clear()
        self.hand([])
        self.flush()
        if any(ref() is not None for ref in held):
            gc.collect()
        left = [names[id(box)] for ref in held if (box := ref()) is not None]
        if left:
            what = f"the part holds the mailbox of reader {left[0]}, whose request has ended and who has been woken"
            judges.fail(Cause.STATE_KEPT, what, f"held:     {len(left)} such mailboxes", reason=judges.FORGET)

    def last_items(self, *batch: Tracked) -> Handed:
        """The last tokens and the ends of some requests, which are forgotten here."""
        handed: Handed = []
        for t in batch:
            box = self._boxes[t.number]
            handed += [(box, self._token(t, "length")), (box, End(t.session))]
        self._forget(batch)
        return handed

    def twin(self) -> Self:
        return type(self)(self.learner, replace(self.sizes, seed=self.sizes.seed + 1))

    def _token(self, t: Tracked, finish_reason: str | None = None) -> NewTokenItem:
        self._words += 1
        return NewTokenItem(t.session, self._words, finish_reason)

    def _forget(self, batch: Sequence[Tracked]) -> None:
        for t in batch:
            self.sessions.remove(t)
            del self._boxes[t.number]

    # -- what a check asks --------------------------------------------------------------------------------------------

    def work(self, batch: Sequence[Tracked]) -> torch.Tensor:
        return torch.empty(0)

    def arguments(self, batch: Sequence[Tracked], tokens: torch.Tensor) -> tuple[Any, ...]:
        return ([(self._boxes[t.number], self._token(t)) for t in batch],)

    def wakes_seen(self) -> WakesSeen:
        return self.log.seen()
