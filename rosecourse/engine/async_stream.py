"""AsyncTokenStream: tokens as they come, for a coroutine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from ..errors import RequestError
from ..request.session import InferenceSession
from ..request.text import Pieces, StreamedToken
from .items import Item, Reading


class AsyncTokenStream(AsyncIterator[StreamedToken]):
    """The reader's end of one request, of `SchedulerManager.submit_async`: `async for token in stream`.

    A stream that nobody holds any more is cancelled. A slow coroutine holds up nobody: its tokens wait here.
    """

    def __init__(
        self, session: InferenceSession, pieces: Pieces, queue: asyncio.Queue[Item], cancel: Callable[[], None]
    ) -> None:
        self.session = session
        self._reading = Reading(session, pieces)
        self._queue = queue
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()

    async def __anext__(self) -> StreamedToken:
        """The next token; waits for it. Raises what `Reading.token` raises; in another event loop `RequestError`."""
        if asyncio.get_running_loop() is not self._loop:
            raise RequestError("the stream is another event loop's: read it where `submit_async` was called")
        item = await self._queue.get()
        try:
            token = self._reading.token(item)
        except BaseException:
            self._queue.put_nowait(item)  # it stays ended, for every reader
            raise
        if token is None:
            self._queue.put_nowait(item)
            raise StopAsyncIteration
        self.session.times.read.append(time.perf_counter())
        return token

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._cancel()

    def __del__(self) -> None:
        self._cancel()
