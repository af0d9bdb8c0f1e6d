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
        self._decoder = TextDecoder(model.tokenizer)

    def token(self, item: Item) -> StreamedToken | None:
        """The token of an item; None at the end of the request.

        Raises `LogitsError` when the model gave no numbers to choose it by, and `SchedulerClosed` when an exception
        ended the stepping thread.
        """
        if isinstance(item, NewTokenItem):
            _, token_id, finish_reason = item
            return StreamedToken(token_id, self._decoder.text(token_id, last=finish_reason is not None), finish_reason)
        error = item.error
        if error is None:
            return None
        if isinstance(error, LogitsError):
            raise LogitsError(error.rows) from error
        raise SchedulerClosed(f"the scheduler stopped: {type(error).__name__}: {error}") from error
