"""Streaming: tokens as they come, from a thread that steps a scheduler."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial

from ..checks import is_count, is_within, require, require_a, shown
from ..config import SamplingParams
from ..decode.parts import Mailbox
from ..errors import QueueFull, RequestError, SchedulerClosed
from ..kv.guards import bookkeeping
from ..request.session import InferenceSession, Prompt
from ..request.text import StreamedToken
from .async_stream import AsyncTokenStream
from .items import End, Reading
from .loop_mailbox import LoopMailbox
from .rules import require_own
from .scheduler import OnlineScheduler
from .stepper import Stepper
from .token_queue import TokenQueue


class TokenStream(Iterator[StreamedToken]):
    """The reader's end of one request: iterate over it.

    A stream that nobody holds any more is cancelled; one that is held keeps its manager. A slow reader holds up
    nobody: its tokens wait here, at most as many as it asked for.
    """

    def __init__(self, manager: SchedulerManager, session: InferenceSession, queue: TokenQueue) -> None:
        self.session = session
        self._manager = manager
        self._queue = queue
        self._reading = Reading(session, manager.scheduler.engine.pieces)
        self._read: deque[StreamedToken] = deque()  # that an interrupt has kept from their reader

    def __next__(self) -> StreamedToken:
        """The next token; waits for it. Raises what `Reading.token` raises."""
        token = None
        try:
            with bookkeeping:
                token = self._read.popleft() if self._read else self._next()
                return token
        except BaseException:
            if token is not None:  # an interrupt that waited: nobody has got it
                self._read.append(token)
            raise

    def _next(self) -> StreamedToken:
        item = self._queue.take()
        if isinstance(item, End):
            self._queue.put_back(item)  # it stays ended, for every reader
        token = self._reading.token(item)
        if token is None:
            raise StopIteration
        self.session.times.read.append(time.perf_counter())
        return token

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._manager.cancel(self.session)

    def __del__(self) -> None:
        self.cancel()


class SchedulerManager:
    """A thread that steps a scheduler while there is work. Any thread may submit, read and cancel.

    Only the stepping thread changes the scheduler and the engine's cache; the others leave it messages. Until `close`
    the engine is that thread's: whoever else computes with it gets `EngineBusy`. If a step raises, that ends it: every
    request is cancelled, every reader gets `SchedulerClosed`, and so does who submits. A manager that nobody holds any
    more is closed.
    """

    def __init__(self, scheduler: OnlineScheduler, *, max_waiting: int | None = 1024) -> None:
        """max_waiting: most requests in the queue, those that are being computed not counted; None is no limit.

        Raises `EngineBusy` for an engine that another thread is using, or that has a manager.
        """
        require_a(OnlineScheduler, scheduler, "scheduler")
        require(
            max_waiting is None or is_count(max_waiting),
            f"max_waiting is {shown(max_waiting)}: give 1 or more, or None",
        )
        self.scheduler = scheduler
        self.max_waiting = max_waiting
        with bookkeeping:
            self._stepper = Stepper(scheduler)
            self._of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopMailbox]
            self._of_loops = weakref.WeakKeyDictionary()
            self._dropped = weakref.finalize(self, self._stepper.end)  # it does not wait: any thread may collect

    # -- any thread -----------------------------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> TokenStream:
        """Queue a request; returns the stream of its tokens.

        Raises at once `RequestError` for a request that can never be served, `QueueFull` when `max_waiting` others
        wait, and `SchedulerClosed`.
        scheduled: when it was to arrive (`time.perf_counter`), if that is not now: waiting counts from there.
        """
        session = self.new_session(prompt, params, scheduled)
        queue = TokenQueue()
        try:
            with bookkeeping:
                stream = TokenStream(self, session, queue)
                self.accept(session, queue)
                return stream
        except BaseException:
            self.cancel(session)  # an interrupt that waited: nobody has got the stream
            raise

    def submit_async(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> AsyncTokenStream:
        """The same for a coroutine: the stream is its event loop's, `async for token in stream`.

        Raises `RequestError` where no event loop runs, too.
        """
        mailbox = self._mailbox_of_loop()
        session = self.new_session(prompt, params, scheduled)
        pieces = self.scheduler.engine.pieces
        stream = AsyncTokenStream(session, pieces, mailbox.queue_of(session), partial(self.cancel, session))
        try:
            self.accept(session, mailbox)
            return stream
        except BaseException:
            mailbox.drop(session)
            raise

    def _mailbox_of_loop(self) -> LoopMailbox:
        """All streams of an event loop share one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RequestError("no event loop runs here: call submit_async in a coroutine, or submit") from None
        mailbox = self._of_loops.get(loop)
        if mailbox is None:
            mailbox = self._of_loops[loop] = LoopMailbox(loop)
        return mailbox

    def new_session(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> InferenceSession:
        """A session for `accept`. See `submit`."""
        submitted = time.perf_counter() if scheduled is None else scheduled
        require(is_within(submitted, 0, math.inf), f"scheduled is {shown(scheduled)}: give seconds, or None for now")
        session = self.scheduler.engine.new_session(prompt, params)
        session.times.submitted = submitted
        return session

    def accept(self, session: InferenceSession, mailbox: Mailbox) -> None:
        """Queue a session of `new_session`. Its items go to a mailbox: those of `engine.items`. Raises as `submit`."""
        with bookkeeping, self._stepper.changed:
            self._check_open()
            self._stepper.mailboxes[session] = mailbox
            self._stepper.new.append(session)
            self._stepper.changed.notify()

    def _check_open(self) -> None:
        if self._stepper.closing:
            failure = self._stepper.failure
            told = str(failure) if isinstance(failure, SchedulerClosed) else "make a new SchedulerManager"
            raise SchedulerClosed(f"the scheduler is closed: {told}") from failure
        waiting = len(self._stepper.new) + len(self.scheduler.waiting)
        if self.max_waiting is not None and waiting >= self.max_waiting:
            raise QueueFull(
                f"{waiting} requests wait already, max_waiting is {self.max_waiting}: submit again later, or give the "
                "SchedulerManager a longer queue"
            )

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request, waiting or running; no effect on one that has ended."""
        require_a(InferenceSession, session, "session")
        require_own(session, self.scheduler.engine)
        if session.owner not in (None, self.scheduler.ref):
            raise RequestError("the session is another scheduler's: cancel it there")
        with bookkeeping, self._stepper.changed:
            if session in self._stepper.mailboxes:
                self._stepper.cancelled.append(session)
                self._stepper.changed.notify()

    def close(self, drain: bool = False) -> None:
        """End the thread, and wait until it has ended; any thread may, more than once.

        drain: first let the requests run to their end, else they are cancelled (as they are by a second call without).
        """
        self._stepper.end(drain)
        if threading.current_thread() is self._stepper.thread:
            return  # an admission policy, say, closes: the thread ends after this step
        self._stepper.join()
        self._dropped.detach()

    def __enter__(self) -> SchedulerManager:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
