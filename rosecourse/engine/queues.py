"""The sessions of a scheduler in an order, and the order in which they are admitted."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Any

from ..request.session import InferenceSession


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


def fifo(waiting: Queue) -> int:
    """Admission in the order of arrival: the number of the next session to admit."""
    return 0
