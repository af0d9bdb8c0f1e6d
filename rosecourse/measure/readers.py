"""Four ways to read the streams of a run, as the front end of a server may do it.

They differ in how many threads wait for tokens. Python runs one thread at a time: every reader that wakes takes its
turn from the thread that steps.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..config import SamplingParams
from ..engine.streaming import SchedulerManager, TokenReader, TokenStream
from ..errors import LogitsError
from ..request.session import InferenceSession, Prompt

Submitted = TypeVar("Submitted")  # what a way of reading knows a request by


class Readers(ABC, Generic[Submitted]):
    """Whoever reads the streams of one run: `start`, then `submit` each request, then `finish`; `close` in any case."""

    def __init__(self, manager: SchedulerManager) -> None:
        self._manager = manager

    def start(self) -> None:
        """Start what reads from the beginning on."""

    @abstractmethod
    def submit(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> Submitted:
        """Submit a request, from any thread. scheduled: when it was to arrive, in seconds of `time.perf_counter`."""

    @abstractmethod
    def finish(self, submitted: Sequence[Submitted]) -> list[InferenceSession]:
        """Wait until all requests have been read to their ends; returns their sessions in the order of `submitted`.

        Raises what a reader has raised, except `LogitsError`: the judge of the run finds such a request by itself.
        """

    def close(self) -> None:
        """Cancel what is not finished, and wait until no thread of the readers is left."""


class Sequential(Readers[TokenStream]):
    """The submitting thread reads, once all requests are there: one stream after the other, each to its end."""

    def submit(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> TokenStream:
        return self._manager.submit(prompt, params, scheduled)

    def finish(self, submitted: Sequence[TokenStream]) -> list[InferenceSession]:
        for stream in submitted:
            _read_to_its_end(stream)
        return [stream.session for stream in submitted]


class Threads(Readers["StreamThread"]):
    """A thread for each stream, which starts when its request is submitted."""

    def __init__(self, manager: SchedulerManager) -> None:
        super().__init__(manager)
        self._threads: list[StreamThread] = []

    def submit(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> StreamThread:
        thread = StreamThread(self._manager.submit(prompt, params, scheduled))
        self._threads.append(thread)  # first, so that `close` finds every thread that has started
        thread.start()
        return thread

    def finish(self, submitted: Sequence[StreamThread]) -> list[InferenceSession]:
        for thread in submitted:
            thread.finish()
        return [thread.stream.session for thread in submitted]

    def close(self) -> None:
        for thread in self._threads:
            thread.stream.cancel()
        for thread in self._threads:
            thread.end()


class One(Readers[InferenceSession]):
    """One thread reads all streams: each time it wakes, it takes all that has come."""

    def __init__(self, manager: SchedulerManager) -> None:
        super().__init__(manager)
        self._reader = TokenReader(manager)
        self._more: SimpleQueue[bool] = SimpleQueue()  # True for each request; False: no more come
        self._sessions: list[InferenceSession] = []
        self._thread = ReaderThread(self._read)

    def start(self) -> None:
        self._thread.start()

    def submit(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> InferenceSession:
        session = self._reader.submit(prompt, params, scheduled)
        self._sessions.append(session)
        self._more.put(True)
        return session

    def finish(self, submitted: Sequence[InferenceSession]) -> list[InferenceSession]:
        self._more.put(False)
        self._thread.finish()
        return list(submitted)

    def close(self) -> None:
        for session in self._sessions:
            self._manager.cancel(session)
        self._more.put(False)
        self._thread.end()

    def _read(self) -> None:
        while self._more.get():
            for _ in self._reader:
                pass


class Asyncio(Readers["Future[InferenceSession]"]):
    """One thread runs an event loop, in which a coroutine for each request submits it and reads its stream."""

    def __init__(self, manager: SchedulerManager) -> None:
        super().__init__(manager)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = ReaderThread(self._run)

    def start(self) -> None:
        self._thread.start()

    def submit(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> Future[InferenceSession]:
        return asyncio.run_coroutine_threadsafe(self._read(prompt, params, scheduled), self._loop)

    def finish(self, submitted: Sequence[Future[InferenceSession]]) -> list[InferenceSession]:
        return [future.result() for future in submitted]

    def close(self) -> None:
        with suppress(RuntimeError):  # the loop has ended with its thread
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.end()
        self._loop.close()

    async def _read(self, prompt: Prompt, params: SamplingParams, scheduled: float) -> InferenceSession:
        stream = self._manager.submit_async(prompt, params, scheduled)
        try:
            with suppress(LogitsError):
                async for _ in stream:
                    pass
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return stream.session

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # it cancels the coroutines that are left
            runner.run(self._ended.wait())


READERS: dict[str, Callable[[SchedulerManager], Readers[Any]]] = {
    "sequential": Sequential,
    "threads": Threads,
    "one": One,
    "asyncio": Asyncio,
}


class ReaderThread(threading.Thread):
    """A thread that keeps what its work has raised for whoever waits for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="rosecourse-reader", daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Wait until the work is done. Raises what it has raised."""
        self.join()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Wait until the thread has ended, if it has ever started."""
        if self.is_alive():
            self.join()


class StreamThread(ReaderThread):
    """A thread that reads one stream."""

    def __init__(self, stream: TokenStream) -> None:
        super().__init__(partial(_read_to_its_end, stream))
        self.stream = stream


def _read_to_its_end(stream: TokenStream) -> None:
    with suppress(LogitsError):  # see `Readers.finish`
        for _ in stream:
            pass
