"""Streaming: tokens as they come, from a thread that steps a scheduler (`engine.stepper`) to their readers."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary, finalize

from ..checks import is_count, is_within, require, require_a, shown
from ..config import SamplingParams
from ..decode.parts import Mailbox
from ..errors import LogitsError, QueueFull, RequestError, SchedulerClosed
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, Prompt
from ..request.text import StreamedToken, TextDecoder
from .rules import require_own
from .scheduler import OnlineScheduler
from .stepper import End, Item, LoopMailbox, One, Stepper, TokenQueue, Tokens

T = TypeVar("T")
Read = tuple[InferenceSession, StreamedToken | LogitsError]


class BlockingReader(Iterator[T]):
    """What a thread waits in: `_next` inside `bookkeeping`. What an interrupt has kept from the reader comes next."""

    def __init__(self) -> None:
        self._kept: deque[T] = deque()

    def __next__(self) -> T:
        read: list[T] = []
        try:
            with bookkeeping:
                read.append(self._kept.popleft() if self._kept else self._next())
                return read[0]
        except BaseException:  # an interrupt that waited: nobody has got it
            self._kept.extend(read)
            raise

    @abstractmethod
    def _next(self) -> T: ...


class TokenReader(BlockingReader[list[Read]]):
    """Reads all the requests that are submitted by it, in one thread: iterate over it.

    Each item is what has come since the last one: a list of sessions, each with a token, or with the `LogitsError` that
    ended it. The iteration ends when no request is left; after a further `submit` it can go on. After the tokens comes
    `SchedulerClosed` where the stepping thread has failed. The requests of a reader that nobody holds are cancelled.
    """

    def __init__(self, manager: SchedulerManager) -> None:
        super().__init__()
        # `TextDecoder.token` of each request that has not ended.
        self._requests: dict[InferenceSession, Callable[..., StreamedToken]] = {}
        require_a(SchedulerManager, manager, "manager")
        self._manager, self._queue = manager, TokenQueue()
        self.cancel = manager.cancel
        self._failure: SchedulerClosed | None = None  # which comes after all tokens, and to whoever asks again

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> InferenceSession:
        """Queue a request; its tokens come with the others'. Any thread may; see `SchedulerManager.submit`."""
        session = self._manager.new_session(prompt, params, scheduled)
        try:
            with bookkeeping:
                self._requests[session] = TextDecoder(self._manager.scheduler.engine.pieces).token
                self._manager.queue(session, self._queue)
                return session
        except BaseException:  # an interrupt, say: nobody has got the session
            self._requests.pop(session, None)
            self.cancel(session)
            raise

    def _next(self) -> list[Read]:
        read: list[Read] = []
        while not read:
            if self._failure is not None:
                raise self._failure
            if not self._requests:
                raise StopIteration
            for item in self._queue.take_all():
                self._take(item, read)
        now = time.perf_counter()
        for session, token in read:
            if isinstance(token, StreamedToken):
                session.times.read.append(now)
        return read

    def _take(self, item: Item, read: list[Read]) -> None:
        """Add what an item is to the reader: nothing, if its request has ended."""
        if isinstance(item, End):
            if self._requests.pop(item.session, None) is not None:
                self._end(item, read)
            return
        for session, token_id, *reason in item.new_tokens if isinstance(item, Tokens) else [item]:
            if (streamed := self._requests.get(session)) is not None:
                read.append((session, streamed(token_id, *reason)))

    def _end(self, end: End, read: list[Read]) -> None:
        try:
            end.require_well()
        except LogitsError as error:
            read.append((end.session, error))
        except SchedulerClosed as error:  # the thread that steps has ended, and with it every request
            self._failure = error
            self._requests.clear()

    def __del__(self) -> None:
        for session in list(getattr(self, "_requests", ())):  # an interrupt may come before there are any
            self._manager.cancel(session)


class TokenStream(BlockingReader[StreamedToken]):
    """The stream of one request, for one thread. `LogitsError` comes where no token could be chosen."""

    def __init__(self, reader: TokenReader, session: InferenceSession) -> None:
        super().__init__()
        self.session = session
        self._reader = reader
        self._tokens: deque[StreamedToken | LogitsError] = deque()

    def _next(self) -> StreamedToken:
        if not self._tokens:
            self._tokens.extend(token for _, token in next(self._reader))
        token = self._tokens.popleft()
        if isinstance(token, LogitsError):
            raise token
        return token

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._reader.cancel(self.session)


class AsyncTokenStream(AsyncIterator[StreamedToken]):
    """A `TokenStream` for coroutines: `async for token in stream`. `RequestError` in another event loop."""

    def __init__(self, manager: SchedulerManager, session: InferenceSession, queue: asyncio.Queue[One]) -> None:
        self.session = session
        self._manager, self._queue, self._loop = manager, queue, asyncio.get_running_loop()
        self._streamed = TextDecoder(manager.scheduler.engine.pieces).token

    async def __anext__(self) -> StreamedToken:
        if asyncio.get_running_loop() is not self._loop:
            raise RequestError("the stream is another event loop's: read it where `submit_async` was called")
        item = await self._queue.get()
        if isinstance(item, End):
            self._queue.put_nowait(item)  # it stays ended, for every reader
            item.require_well()
            raise StopAsyncIteration
        token = self._streamed(item.token_id, item.finish_reason)
        self.session.times.read.append(time.perf_counter())
        return token

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._manager.cancel(self.session)

    def __del__(self) -> None:
        self.cancel()


class SchedulerManager:
    """A thread that steps a scheduler while there is work. Any thread may submit, read and cancel.

    Until `close` the engine is that thread's: others get `EngineBusy`. If a step raises, every request is cancelled,
    and every reader, and who submits, gets `SchedulerClosed`. A manager that nobody holds is closed.
    """

    def __init__(self, scheduler: OnlineScheduler, *, max_waiting: int | None = 1024) -> None:
        """max_waiting: most requests in the queue, or None. Raises `EngineBusy` where another thread has the engine."""
        require_a(OnlineScheduler, scheduler, "scheduler")
        known = max_waiting is None or is_count(max_waiting)
        require(known, f"max_waiting is {shown(max_waiting)}: give 1 or more, or None")
        self.scheduler, self.max_waiting = scheduler, max_waiting
        with bookkeeping:
            self._stepper = Stepper(scheduler)
            self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopMailbox] = WeakKeyDictionary()
            self._dropped = finalize(self, self._stepper.end)  # it does not wait: any thread may collect

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> TokenStream:
        """Queue a request; returns the stream of its tokens. scheduled: when it arrived (`perf_counter`), if not now.

        Raises `RequestError` for a request that can never be served, `QueueFull`, and `SchedulerClosed`.
        """
        reader = TokenReader(self)
        return TokenStream(reader, reader.submit(prompt, params, scheduled))

    def submit_async(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> AsyncTokenStream:
        """The same for a coroutine, with a stream of its event loop's. `RequestError` where none runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RequestError("no event loop runs here: call submit_async in a coroutine, or submit") from None
        mailbox = self._of_loops.setdefault(loop, LoopMailbox(loop))  # all streams of a loop share it
        session = self.new_session(prompt, params, scheduled)
        stream = AsyncTokenStream(self, session, mailbox.queue_of(session))
        try:
            self.queue(session, mailbox)
            return stream
        except BaseException:  # an interrupt, say: nobody has got the stream
            stream.cancel()
            raise

    def new_session(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> InferenceSession:
        submitted = time.perf_counter() if scheduled is None else scheduled
        require(is_within(submitted, 0, math.inf), f"scheduled is {shown(scheduled)}: give seconds, or None for now")
        session = self.scheduler.engine.new_session(prompt, params)
        session.times.submitted = submitted
        return session

    def queue(self, session: InferenceSession, mailbox: Mailbox) -> None:
        """Queue a session of `new_session`, whose items go to a mailbox. Raises as `submit`."""
        stepper = self._stepper
        with bookkeeping, stepper.changed:
            if stepper.closing:
                raise SchedulerClosed("the scheduler is closed: make a new SchedulerManager") from stepper.failure
            waiting = len(stepper.new) + len(self.scheduler.waiting)
            if self.max_waiting is not None and waiting >= self.max_waiting:
                raise QueueFull(
                    f"{waiting} requests wait already, max_waiting is {self.max_waiting}: submit again later, or give "
                    "the SchedulerManager a longer queue"
                )
            stepper.mailboxes[session] = mailbox
            stepper.new.append(session)
            stepper.changed.notify()

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request, waiting or running; no effect on one that has ended."""
        require_own(session, self.scheduler.engine)
        if session.owner not in (None, self.scheduler.ref):
            raise RequestError("the session is another scheduler's: cancel it there")
        with bookkeeping, self._stepper.changed:
            if session in self._stepper.mailboxes:
                self._stepper.cancelled.append(session)
                self._stepper.changed.notify()

    def close(self, drain: bool = False) -> None:
        """End the thread, and wait for that; any thread may, more than once. drain: let the requests end first."""
        self._stepper.end(drain)
        if threading.current_thread() is self._stepper.thread:
            return  # it ends after this step
        self._stepper.thread.join()
        self._dropped.detach()

    def __enter__(self) -> SchedulerManager:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
