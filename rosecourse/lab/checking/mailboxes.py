"""Mailboxes without threads: a reader sleeps until it is woken, and then reads all that lies there."""

from __future__ import annotations

from typing import Any

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...engine.scheduler import OnlineScheduler
from ...engine.stepper import End, NewTokenItem
from ...request.session import InferenceSession


class Box:
    """A mailbox and its reader. items: what lies there. read: what its reader has read. wakes: how often it was woken.

    A box in which nothing lies is false, as the engine's mailboxes are.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: list[Any] = []
        self.read: list[Any] = []
        self.wakes = 0

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"the mailbox of reader {self.name}, in which {len(self.items)} items lie"

    def put(self, item: Any) -> None:
        """Lay an item down; whoever sleeps goes on sleeping."""
        self.items.append(item)

    def wake(self) -> None:
        """Let the reader read all that lies here."""
        self.wakes += 1
        self.read += self.items
        self.items.clear()


class HandedByHand:
    """A scheduler whose steps are handed to the engine's delivery, as the thread of a `SchedulerManager` does it."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine, self.scheduler = engine, OnlineScheduler(engine)
        self.boxes: dict[InferenceSession, Box] = {}  # of the requests that have not ended

    def submit(self, box: Box, prompt: list[int], new_tokens: int) -> InferenceSession:
        """A greedy request of a reader."""
        session = self.engine.new_session(prompt, SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False))
        self.scheduler.submit(session)
        self.boxes[session] = box
        return session

    def step(self) -> None:
        """One step, and what it has made is handed over. Where no work is left, the readers hear of it."""
        new_tokens = self.scheduler.step()
        last = {session: number for number, (session, _) in enumerate(new_tokens)}
        handed: list[tuple[Any, Any]] = []
        for number, (session, token_id) in enumerate(new_tokens):
            reason = session.finish_reason if last[session] == number else None
            handed.append((self.boxes[session], NewTokenItem(session, token_id, reason)))
            if reason is not None:
                handed.append((self.boxes.pop(session), End(session)))
        self.engine.delivery.hand_over(handed)
        if not self.scheduler.has_work:
            self.engine.delivery.flush()
