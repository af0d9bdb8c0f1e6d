"""What lies in a mailbox, and what its reader makes of it."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import LogitsError, SchedulerClosed
from ..models.shape import Model
from ..request.session import InferenceSession
from ..request.text import StreamedToken, TextDecoder


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


class Reading:
    """One request as its reader sees it: items become text."""

    def __init__(self, session: InferenceSession, model: Model) -> None:
        self.session = session
        self._text = TextDecoder(model.tokenizer).text

    def token(self, item: Item) -> StreamedToken | None:
        """The token of an item; None at the end of the request. Raises what `require_well` raises."""
        if isinstance(item, End):
            self.require_well(item)
            return None
        return self.streamed(item)

    def streamed(self, item: NewTokenItem) -> StreamedToken:
        """A token with its text."""
        _, token_id, finish_reason = item
        return StreamedToken(token_id, self._text(token_id, finish_reason is not None), finish_reason)

    def require_well(self, end: End) -> None:
        """Raise `LogitsError` where the model gave no numbers to choose a token by.

        Raises `SchedulerClosed` where an exception has ended the stepping thread.
        """
        error = end.error
        if isinstance(error, LogitsError):
            raise LogitsError(error.rows) from error
        if error is not None:
            raise SchedulerClosed(f"the scheduler stopped: {type(error).__name__}: {error}") from error
