"""Streaming: tokens as they come, from a thread that steps a scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers.decoders import DecodeStream

from .config import SamplingParams
from .errors import SchedulerClosed
from .session import InferenceSession

if TYPE_CHECKING:
    from .engine import Prompt
    from .scheduler import OnlineScheduler


class StreamedToken(NamedTuple):
    """One token of a stream. text is what it adds, empty while a character is incomplete.

    finish_reason: None, and on the last token `stop` or `length`.
    """

    token_id: int
    text: str
    finish_reason: str | None


class TextDecoder:
    """Token ids to pieces of text, one at a time, never half a character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def text(self, token_id: int) -> str:
        return self._stream.step(self._tokenizer, token_id) or ""


class TokenStream(Iterator[StreamedToken]):
    """The reader's end of one request: iterate over it. A stream that nobody holds any more is cancelled."""

    def __init__(self, manager: SchedulerManager, session: InferenceSession, queue: SimpleQueue) -> None:
        self.session = session
        self._manager = manager
        self._queue = queue
        self._decoder = TextDecoder(manager.scheduler.engine.model.tokenizer)
        self._ended = False

    def __next__(self) -> StreamedToken:
        """The next token; waits for it. Raises what ended the stepping thread, if something did."""
        item = None if self._ended else self._queue.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise SchedulerClosed(f"the scheduler stopped: {type(item).__name__}: {item}") from item
        if item is None:
            self._ended = True
            raise StopIteration
        token_id, finish_reason = item
        return StreamedToken(token_id, self._decoder.text(token_id), finish_reason)

    def cancel(self) -> None:
        """Stop the request. Tokens that are there already can still be read."""
        self._manager.cancel(self.session)

    def __del__(self) -> None:
        self.cancel()


class SchedulerManager:
    """A thread that steps a scheduler while there is work. Any thread may submit, read and cancel.

    Only the stepping thread touches the scheduler and the engine; the others leave it messages.
    """

    def __init__(self, scheduler: OnlineScheduler) -> None:
        self.scheduler = scheduler
        self._queues: dict[InferenceSession, SimpleQueue] = {}  # the stepping thread's alone
        self._inbox: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._closing = False
        self._drain = False
        self._thread = threading.Thread(target=self._run, name="rosecourse-scheduler", daemon=True)
        self._thread.start()

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
        stream = TokenStream(self, session, queue)
        if not self._tell(lambda: self._start(session, queue)):
            raise SchedulerClosed("the scheduler is closed: make a new SchedulerManager")
        return stream

    def cancel(self, session: InferenceSession) -> None:
        """Stop a request, wherever it is; no effect on one that has ended."""
        self._tell(lambda: self._stop(session))

    def close(self, drain: bool = False) -> None:
        """End the thread. drain: first let the requests run to their end, else they are cancelled."""
        with self._changed:
            self._drain = drain and not self._closing
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> SchedulerManager:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _tell(self, message: Callable[[], None]) -> bool:
        """Leave a message for the stepping thread; False when it takes none any more."""
        with self._changed:
            if self._closing:
                return False
            self._inbox.append(message)
            self._changed.notify()
            return True

    # -- the stepping thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        last_word: BaseException | None = None
        try:
            while self._wait_for_work():
                for session, token_id in self.scheduler.step():
                    self._deliver(session, token_id)
        except BaseException as error:  # whatever it is, the readers must hear of it
            last_word = error
        with self._changed:
            self._closing = True
            messages, self._inbox = self._inbox, []
        for message in messages:
            message()
        for session in list(self._queues):
            self._stop(session, last_word)

    def _wait_for_work(self) -> bool:
        """Take the messages; sleep while there is nothing to do. False when it is time to end."""
        with self._changed:
            while not (self._inbox or self._closing or self.scheduler.has_work):
                self._changed.wait()
            messages, self._inbox = self._inbox, []
        for message in messages:
            message()
        return not self._closing or (self._drain and self.scheduler.has_work)

    def _start(self, session: InferenceSession, queue: SimpleQueue) -> None:
        self._queues[session] = queue
        self.scheduler.submit(session)

    def _deliver(self, session: InferenceSession, token_id: int) -> None:
        self._queues[session].put((token_id, session.finish_reason))
        if session.finished:
            self._queues.pop(session).put(None)

    def _stop(self, session: InferenceSession, last_word: BaseException | None = None) -> None:
        queue = self._queues.pop(session, None)
        if queue is not None:
            self.scheduler.cancel(session)
            queue.put(last_word)
