"""Streaming: tokens as they come, from a thread that steps a scheduler."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from .config import SamplingParams
from .errors import SchedulerClosed
from .session import InferenceSession, Prompt
from .text import StreamedToken, TextDecoder

if TYPE_CHECKING:
    from .scheduler import OnlineScheduler


class TokenStream(Iterator[StreamedToken]):
    """The reader's end of one request: iterate over it. A stream that nobody holds any more is cancelled."""

    def __init__(self, manager: SchedulerManager, session: InferenceSession, queue: SimpleQueue) -> None:
        self.session = session
        self._manager = manager
        self._queue = queue
        self._decoder = TextDecoder(manager.scheduler.engine.model.tokenizer)

    def __next__(self) -> StreamedToken:
        """The next token; waits for it. Raises `SchedulerClosed` when an exception ended the stepping thread."""
        item = self._queue.get()
        if isinstance(item, NewTokenItem):
            text = self._decoder.text(item.token_id, last=item.finish_reason is not None)
            return StreamedToken(item.token_id, text, item.finish_reason)
        self._queue.put(item)  # it stays ended, for every reader
        if item is None:
            raise StopIteration
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

    Only the stepping thread touches the scheduler and the engine; the others leave it messages.
    """

    def __init__(self, scheduler: OnlineScheduler) -> None:
        self.scheduler = scheduler
        self._changed = threading.Condition()  # guards what follows
        self._queues: dict[InferenceSession, SimpleQueue] = {}  # of the requests that have not ended
        self._new: list[InferenceSession] = []
        self._cancelled: list[InferenceSession] = []
        self._closing = False
        self._drain = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rosecourse-scheduler", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    # -- any thread -----------------------------------------------------------------------------------------------

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, scheduled: float | None = None
    ) -> TokenStream:
        """Queue a request; returns the stream of its tokens. Raises at once for a request that can never be served.

        scheduled: when it was to arrive (`time.perf_counter`), if that is not now: waiting counts from there.
        """
        submitted = time.perf_counter() if scheduled is None else scheduled
        session = self.scheduler.engine.new_session(prompt, params)
        session.times.submitted = submitted
        queue: SimpleQueue = SimpleQueue()
        with self._changed:
            if self._closing:
                raise SchedulerClosed("the scheduler is closed: make a new SchedulerManager") from self._failure
            self._queues[session] = queue
            self._new.append(session)
            self._changed.notify()
        return TokenStream(self, session, queue)

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request, waiting or running; no effect on one that has ended."""
        with self._changed:
            self._cancelled.append(session)
            self._changed.notify()

    def close(self, drain: bool = False) -> None:
        """End the thread. drain: first let the requests run to their end, else they are cancelled."""
        with self._changed:
            self._drain = drain and (self._drain or not self._closing)
            self._closing = True
            self._changed.notify()
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
        except BaseException as error:  # whatever it is, the readers must hear of it
            self._failure = error
        with self._changed:
            self._closing = True
            unanswered = list(self._queues)
        for session in unanswered:
            self._end(session, self._failure)
        for session in unanswered:
            with suppress(Exception):  # after a failure the cache may be broken, too
                self.scheduler.cancel(session)

    def _wait_for_work(self) -> bool:
        """Take what the other threads left; sleep while there is nothing to do. False when it is time to end."""
        with self._changed:
            while not (self._new or self._cancelled or self._closing or self.scheduler.has_work):
                self._changed.wait()
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
        for session in new:
            self.scheduler.submit(session)
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
