"""Queue: sessions in an order, without walking over them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from ..request.session import InferenceSession


class Queue(Sequence[InferenceSession]):
    """Sessions in an order, each at most once.

    Both ends, membership and `discard` take the same time however many sessions are in it; `queue[n]` walks n of them.
    """

    def __init__(self, sessions: Iterable[InferenceSession] = ()) -> None:
        self._sessions: OrderedDict[InferenceSession, None] = OrderedDict.fromkeys(sessions)

    def append(self, session: InferenceSession) -> None:
        """Put a session that is not in the queue at its end."""
        self._sessions[session] = None

    def append_first(self, session: InferenceSession) -> None:
        """Put a session at the front."""
        self._sessions[session] = None
        self._sessions.move_to_end(session, last=False)

    def discard(self, session: InferenceSession) -> None:
        """Take a session out, if it is there."""
        self._sessions.pop(session, None)

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    def __iter__(self) -> Iterator[InferenceSession]:
        return iter(self._sessions)

    def __reversed__(self) -> Iterator[InferenceSession]:
        return reversed(self._sessions)

    @overload
    def __getitem__(self, number: int) -> InferenceSession: ...
    @overload
    def __getitem__(self, number: slice) -> list[InferenceSession]: ...
    def __getitem__(self, number: int | slice) -> InferenceSession | list[InferenceSession]:
        """A session by its number, counted from the nearer end; a slice is a list."""
        if isinstance(number, slice):
            return list(self)[number]
        size = len(self)
        place = range(size)[number]  # raises IndexError
        from_end = place >= size / 2
        return next(islice(reversed(self) if from_end else iter(self), size - 1 - place if from_end else place, None))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)})"
