"""Streaming: tokens as they come, from a thread that steps a scheduler."""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

from ..checks import is_count, is_within, require, require_a, shown
from ..config import SamplingParams
from ..errors import LogitsError, QueueFull, SchedulerClosed
from ..kv.bookkeeping import bookkeeping
from ..request.session import InferenceSession, Prompt
from ..request.text import StreamedToken, TextDecoder
from .scheduler import OnlineScheduler


class TokenStream(Iterator[StreamedToken]):
    """The reader's end of one request: iterate over it. A stream that nobody holds any more is cancelled.

    A slow reader holds up nobody: its tokens wait here, at most as many as it asked for.
    """

    def __init__(self, manager: SchedulerManager, session: InferenceSession, queue: SimpleQueue) -> None:
        self.session = session
        self._manager = manager
        self._queue = queue
        self._decoder = TextDecoder(manager.scheduler.engine.model.tokenizer)

    def __next__(self) -> StreamedToken:
        """The next token; waits for it.

        Raises `LogitsError` when the model gave no numbers to choose it by, and `SchedulerClosed` when an exception
        ended the stepping thread.
        """
        item = self._queue.get()
        if isinstance(item, NewTokenItem):
            text = self._decoder.text(item.token_id, last=item.finish_reason is not None)
            return StreamedToken(item.token_id, text, item.finish_reason)
        self._queue.put(item)  # it stays ended, for every reader
        if item is None:
            raise StopIteration
        if isinstance(item, LogitsError):
            raise LogitsError(item.rows) from item
        raise SchedulerClosed(f"the scheduler stopped: {type(item).__name__}: {item}") from item

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._manager.cancel(self.session)

    def __del__(self) -> None:
        self.cancel()


class NewTokenItem(NamedTuple):
    """What the stepping thread puts into a stream's queue for each token; None or an exception ends the stream."""

    token_id: int
    finish_reason: str | None


class SchedulerManager:
    """A thread that steps a scheduler while there is work. Any thread may submit, read and cancel.

    Only the stepping thread changes the scheduler and the engine's cache; the others leave it messages. If a step
    raises, that ends it: every request is cancelled, every reader gets `SchedulerClosed`, and so does who submits.
    """

    def __init__(self, scheduler: OnlineScheduler, *, max_waiting: int | None = 1024) -> None:
        """max_waiting: most requests in the queue, those that are being computed not counted; None is no limit."""
        require_a(OnlineScheduler, scheduler, "scheduler")
        require(
            max_waiting is None or is_count(max_waiting),
            f"max_waiting is {shown(max_waiting)}: give 1 or more, or None",
        )
        self.scheduler = scheduler
        self.max_waiting = max_waiting
        # Guards what follows. Its lock is reentrant: a garbage collection may call cancel, for a stream that is gone,
        # in a thread that holds it. So cancel only ever appends to a list; nothing here iterates over that one.
        self._changed = threading.Condition()
        self._queues: dict[InferenceSession, SimpleQueue] = {}  # of the requests that have not ended
        self._new: list[InferenceSession] = []
        self._cancelled: list[InferenceSession] = []
        self._closing = False
        self._drain = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rosecourse-scheduler", daemon=True)
        with bookkeeping:
            self._thread.start()
            atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    # -- any thread -----------------------------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> TokenStream:
        """Queue a request; returns the stream of its tokens.

        Raises at once `RequestError` for a request that can never be served, `QueueFull` when `max_waiting` others
        wait, and `SchedulerClosed`.
        scheduled: when it was to arrive (`time.perf_counter`), if that is not now: waiting counts from there.
        """
        submitted = time.perf_counter() if scheduled is None else scheduled
        require(is_within(submitted, 0, math.inf), f"scheduled is {shown(scheduled)}: give seconds, or None for now")
        session = self.scheduler.engine.new_session(prompt, params)
        session.times.submitted = submitted
        queue: SimpleQueue = SimpleQueue()
        try:
            with bookkeeping, self._changed:
                self._check_open()
                stream = TokenStream(self, session, queue)
                self._queues[session] = queue
                self._new.append(session)
                self._changed.notify()
                return stream
        except BaseException:
            self.cancel(session)  # an interrupt that waited: nobody has got the stream
            raise

    def _check_open(self) -> None:
        if self._closing:
            raise SchedulerClosed("the scheduler is closed: make a new SchedulerManager") from self._failure
        waiting = len(self._new) + len(self.scheduler.waiting)
        if self.max_waiting is not None and waiting >= self.max_waiting:
            raise QueueFull(
                f"{waiting} requests wait already, max_waiting is {self.max_waiting}: submit again later, or give the "
                "SchedulerManager a longer queue"
            )

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request, waiting or running; no effect on one that has ended."""
        require_a(InferenceSession, session, "session")
        with bookkeeping, self._changed:
            if session in self._queues:
                self._cancelled.append(session)
                self._changed.notify()

    def close(self, drain: bool = False) -> None:
        """End the thread, and wait until it has ended; any thread may, more than once.

        drain: first let the requests run to their end, else they are cancelled (as they are by a second call without).
        """
        with bookkeeping, self._changed:
            self._drain = drain and (self._drain or not self._closing)
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is self._thread:
            return  # an admission policy, say, closes: the thread ends after this step
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> SchedulerManager:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- the stepping thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                for session, token_id in self.scheduler.step():
                    self._deliver(session, token_id)
                while self.scheduler.failed:
                    self._end(self.scheduler.failed.pop(), LogitsError([0]))
        except BaseException as error:  # whatever it is, the readers must hear of it
            self._failure = error
        with self._changed:
            self._closing = True
            unanswered = list(self._queues)
        for session in unanswered:
            with suppress(Exception):  # after a failure the cache may be broken, too
                self.scheduler.cancel(session)
        for session in unanswered:  # who hears of the end finds all blocks given back
            self._end(session, self._failure)

    def _wait_for_work(self) -> bool:
        """Take what the other threads left; sleep while there is nothing to do. False when it is time to end."""
        with self._changed:
            while not (self._new or self._cancelled or self._closing or self.scheduler.has_work):
                self._changed.wait()
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
            for session in new:
                self.scheduler.submit(session)  # here, so that whoever holds the lock sees the whole queue
        for session in cancelled:
            self.scheduler.cancel(session)
            self._end(session)
        return not self._closing or (self._drain and self.scheduler.has_work)

    def _deliver(self, session: InferenceSession, token_id: int) -> None:
        queue = self._queues.get(session)
        if queue is not None:
            queue.put(NewTokenItem(token_id, session.finish_reason))
        if session.finished:
            self._end(session)

    def _end(self, session: InferenceSession, last_word: BaseException | None = None) -> None:
        with self._changed:
            queue = self._queues.pop(session, None)
        if queue is not None:
            queue.put(last_word)
