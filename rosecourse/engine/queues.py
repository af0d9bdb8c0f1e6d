"""The sessions of a scheduler: who waits, who runs, who has ended, and whose blocks come back when."""

from __future__ import annotations

import time
from collections import OrderedDict
from itertools import islice
from typing import Any

from ..request.session import InferenceSession
from .model_runner import Landed


class Queue(OrderedDict[InferenceSession, None]):
    """Sessions in an order, each at most once: the keys of a dictionary.

    The front, membership and `discard` take the same time however many sessions are in it.
    """

    def append(self, session: InferenceSession) -> None:
        """Put a session that is not in the queue at its end."""
        self[session] = None

    def append_first(self, session: InferenceSession) -> None:
        """Put a session at the front."""
        self[session] = None
        self.move_to_end(session, last=False)

    def discard(self, session: InferenceSession) -> None:
        """Take a session out, if it is there."""
        if session in self:
            del self[session]

    def __getitem__(self, number: Any) -> Any:
        """A session by its number; a slice is a list."""
        if isinstance(number, int) and 0 <= number < len(self):
            return next(islice(self, number, None))
        return list(self)[number]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


NewToken = tuple[InferenceSession, int]


class Sessions:
    """The books of a scheduler. runner: a `ModelRunner`."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.waiting, self.running = Queue(), Queue()  # who waits holds no blocks, unless it is a fork
        self.ended = Queue()  # no longer running, but a step in flight still writes to their blocks
        self.failed: list[InferenceSession] = []  # ended by an error of their own; whoever has read it may empty it
        self._new_tokens: list[NewToken] = []  # made, and not yet returned by a step
        self._failure: BaseException | None = None  # why blocks could not be given back

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self._new_tokens or self.ended)

    def take_new_tokens(self) -> list[NewToken]:
        """The tokens that no step has returned; none will."""
        new_tokens, self._new_tokens = self._new_tokens, []
        return new_tokens

    def _hand_out(self, landed: Landed) -> None:
        """Note the tokens that sessions have taken; one that could have none ends, with an error."""
        now = time.perf_counter()
        self._new_tokens += landed.new_tokens
        for session, _ in landed.new_tokens:
            session.times.tokens.append(now)
            if session.finish_reason is not None:
                self._end(session)
        for session in landed.without:
            session.finish_reason = "error"
            self.failed.append(session)
            self._end(session)
        if self.ended:
            self._free_ended()

    def _end(self, session: InferenceSession) -> None:
        """A session has finished. Its blocks come back when no step in flight can write to them."""
        self.running.discard(session)
        self.waiting.discard(session)  # a sample may wait when its token lands
        self.ended.append(session)

    def _free_ended(self) -> None:
        for session in list(self.ended):
            if not self.runner.is_in_flight(session):
                self.ended.discard(session)
                self._free(session)

    def _put_back(self, sessions: list[InferenceSession]) -> None:
        """As if they had not been admitted: they wait at the front, in the same order and without blocks."""
        for session in reversed(sessions):
            self._free(session)
            self.running.discard(session)
            if not session.finished:
                self.waiting.append_first(session)

    def _free(self, session: InferenceSession) -> None:
        """Give a session's blocks back, if it holds any."""
        if session.table is None:
            return
        try:
            self.runner.free(session)
        except BaseException as error:
            self._failure = error
            self.runner.drop()  # there is no next step to land what is in flight
            raise
