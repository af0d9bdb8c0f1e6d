"""The sessions of a scheduler: who waits, who runs, who has ended, and whose blocks come back."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any

from ..request.session import InferenceSession
from .model_runner import ModelRunner


class Queue(OrderedDict[InferenceSession, None]):
    """Sessions in an order, each at most once: the keys of a dictionary.

    Both ends, membership and `discard` take the same time however many sessions are in it; `queue[n]` walks n of them.
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
        """A session by its number, counted from the nearer end; a slice is a list."""
        if isinstance(number, slice):
            return list(self)[number]
        size = len(self)
        place = range(size)[number]  # raises IndexError
        from_end = place >= size / 2
        return next(islice(reversed(self) if from_end else iter(self), size - 1 - place if from_end else place, None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"


def fifo(waiting: Queue) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0


class Queues:
    """A session waits or runs, or has ended. One that waits holds no blocks, unless it is a fork.

    waiting_forks: those in `waiting` that hold blocks, in the same order. ended: no longer running, but a step in
    flight still writes to their blocks. failure: why blocks could not be given back. most: sessions that may run.
    """

    def __init__(self, runner: ModelRunner, most: int) -> None:
        self.runner, self.most = runner, most
        self.waiting, self.running, self.waiting_forks, self.ended = Queue(), Queue(), Queue(), Queue()
        self.failure: BaseException | None = None

    def end(self, session: InferenceSession) -> None:
        """A session has finished. Its blocks come back when no step in flight can write to them."""
        for queue in (self.running, self.waiting, self.waiting_forks):  # a sample may wait when its token lands
            queue.discard(session)
        self.ended.append(session)

    def free_ended(self) -> None:
        for session in list(self.ended):
            if not self.runner.is_in_flight(session):
                self.ended.discard(session)
                self.free(session)

    def make_room(self) -> None:
        """The newest sessions, if more run than the batch has places for, wait at the front, with their blocks."""
        while len(self.running) > self.most:
            session = self.running[-1]
            self.running.discard(session)
            for queue in (self.waiting, self.waiting_forks):
                queue.append_first(session)

    def put_back(self, sessions: list[InferenceSession]) -> None:
        """As if they had not been admitted: they wait at the front, in the same order and without blocks."""
        for session in reversed(sessions):
            self.free(session)
            self.running.discard(session)
            if not session.finished:
                self.waiting.append_first(session)

    def preempt_newest(self) -> bool:
        """Take the blocks of the newest session: a fork that waits, else one that runs; False if only one runs."""
        if not self.waiting_forks and len(self.running) <= 1:
            return False
        if self.waiting_forks:
            self.free(self.waiting_forks[-1])  # and it stays where it is
        else:
            self.put_back([self.running[-1]])
        return True

    def free(self, session: InferenceSession) -> None:
        """Give a session's blocks back, if it holds any."""
        self.waiting_forks.discard(session)
        if session.table is None:
            return
        try:
            self.runner.free(session)
        except BaseException as error:
            self.failure = error
            self.runner.drop()  # there is no next step to land what is in flight
            raise
