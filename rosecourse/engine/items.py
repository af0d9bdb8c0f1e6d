"""What lies in a mailbox, and what its reader makes of it."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import LogitsError, SchedulerClosed
from ..request.session import InferenceSession
from ..request.text import Pieces, StreamedToken, TextDecoder

NewToken = tuple[InferenceSession, int]


class NewTokenItem(NamedTuple):
    """A token of a request. finish_reason: of its last token, else None."""

    session: InferenceSession
    token_id: int
    finish_reason: str | None


class End(NamedTuple):
    """Nothing more comes of a request. error: why, if that is not because it is done or cancelled."""

    session: InferenceSession
    error: BaseException | None = None


Item = NewTokenItem | End


class Tokens(NamedTuple):
    """Tokens that a step has made for one reader of many requests (`token_queue.SharedQueue`), as one item.

    None is the last one of its request.
    """

    new_tokens: list[NewToken]


class Reading:
    """One request as its reader sees it: items become text. streamed: `TextDecoder.token` of this request."""

    __slots__ = ("session", "streamed")

    def __init__(self, session: InferenceSession, pieces: Pieces) -> None:
        self.session = session
        self.streamed = TextDecoder(pieces).token

    def token(self, item: Item) -> StreamedToken | None:
        """The token of an item; None at the end of the request. Raises what `require_well` raises."""
        if isinstance(item, End):
            self.require_well(item)
            return None
        return self.streamed(item.token_id, item.finish_reason)

    def require_well(self, end: End) -> None:
        """Raise `LogitsError` where the model gave no numbers to choose a token by.

        Raises `SchedulerClosed` where an exception has ended the stepping thread.
        """
        error = end.error
        if isinstance(error, LogitsError):
            raise LogitsError(error.rows) from error
        if error is not None:
            raise SchedulerClosed(f"the scheduler stopped: {type(error).__name__}: {error}") from error
