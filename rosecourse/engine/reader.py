"""TokenReader: one reader of many requests."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from ..checks import require_a
from ..config import SamplingParams
from ..errors import LogitsError, SchedulerClosed
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, Prompt
from ..request.text import StreamedToken
from .items import End, Item, Reading, Tokens
from .streaming import SchedulerManager
from .token_queue import SharedQueue

Read = tuple[InferenceSession, StreamedToken | LogitsError]


class TokenReader(Iterator[list[Read]]):
    """Reads all the requests that are submitted by it, in one thread: iterate over it.

    Each item is what has come since the last one: a list of sessions, each with a token, or with the `LogitsError` that
    ended it. The iteration ends when no request is left; after a further `submit` it can go on. A reader that nobody
    holds any more cancels its requests.
    """

    def __init__(self, manager: SchedulerManager) -> None:
        self._requests: dict[InferenceSession, Reading] = {}  # those that have not ended
        require_a(SchedulerManager, manager, "manager")
        self._manager = manager
        self._queue = SharedQueue()
        self._failure: SchedulerClosed | None = None  # which comes after all tokens, and to whoever asks again
        self._read: deque[list[Read]] = deque()  # that an interrupt has kept from its reader

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> InferenceSession:
        """Queue a request; its tokens come with the others'. Any thread may; see `SchedulerManager.submit`."""
        session = self._manager.new_session(prompt, params, scheduled)
        try:
            self._requests[session] = Reading(session, self._manager.scheduler.engine.pieces)
            self._manager.accept(session, self._queue)
            return session
        except BaseException:  # an interrupt, say: nobody has got the session
            self._requests.pop(session, None)
            self._manager.cancel(session)
            raise

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request. Tokens that are there already can still be read."""
        self._manager.cancel(session)

    def __next__(self) -> list[Read]:
        """All that has come; waits until that is something.

        Raises `SchedulerClosed` when an exception ended the stepping thread.
        """
        read: list[Read] = []
        try:
            with bookkeeping:
                read = self._read.popleft() if self._read else self._next()
                return read
        except BaseException:
            if read:  # an interrupt that waited: nobody has got it
                self._read.append(read)
            raise

    def _next(self) -> list[Read]:
        read: list[Read] = []
        while not read:
            if self._failure is not None:
                raise self._failure
            if not self._requests:
                raise StopIteration
            read = self._read_all(self._queue.take_all())
        now = time.perf_counter()
        for session, token in read:
            if isinstance(token, StreamedToken):
                session.times.read.append(now)
        return read

    def _read_all(self, items: list[Item | Tokens]) -> list[Read]:
        """What the items are to their reader, but for those of requests that have ended."""
        read: list[Read] = []
        requests = self._requests
        for item in items:
            if isinstance(item, Tokens):
                for session, token_id in item.new_tokens:
                    if (reading := requests.get(session)) is not None:
                        read.append((session, reading.streamed(token_id)))
            elif isinstance(item, End):
                self._end(item, read)
            elif (reading := requests.get(item.session)) is not None:
                read.append((item.session, reading.streamed(item.token_id, item.finish_reason)))
        return read

    def _end(self, end: End, read: list[Read]) -> None:
        reading = self._requests.pop(end.session, None)
        try:
            if reading is not None:
                reading.require_well(end)
        except LogitsError as error:
            read.append((end.session, error))
        except SchedulerClosed as error:  # the thread that steps has ended, and with it every request
            self._failure = error
            self._requests.clear()

    def __del__(self) -> None:
        for session in list(self._requests):
            self._manager.cancel(session)
