"""Four ways to read the streams of a run, as the front end of a server may do it.

Python runs one thread at a time: every reader that wakes takes its turn from the thread that steps.

Each way is a function of a manager, of threads that it may use, and of `arrive`, which calls what it is given with
each request as it comes, from any thread: a prompt, parameters, and when it was to arrive (`time.perf_counter`). It
returns the sessions, in the order of the workload, once all have been read to their ends, and raises what a reader has
raised, except `LogitsError`: `require_whole` finds such a request. Closing the manager ends all reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from ..engine.streaming import SchedulerManager, TokenReader, TokenStream
from ..errors import LogitsError
from ..request.session import InferenceSession

Arrive = Callable[[Callable[..., Any]], list[Any]]


def sequential(manager: SchedulerManager, threads: Executor, arrive: Arrive) -> list[InferenceSession]:
    """The submitting thread reads, once all requests are there: one stream after the other, each to its end."""
    return [_read(stream) for stream in arrive(manager.submit)]


def thread_each(manager: SchedulerManager, threads: Executor, arrive: Arrive) -> list[InferenceSession]:
    """A thread for each stream, from its submission on."""
    reads = arrive(lambda *request: threads.submit(_read, manager.submit(*request)))
    return [read.result() for read in reads]


def one(manager: SchedulerManager, threads: Executor, arrive: Arrive) -> list[InferenceSession]:
    """One thread reads all streams: each time it wakes, it takes all that has come."""
    reader = TokenReader(manager)
    more: SimpleQueue[bool] = SimpleQueue()  # True for each request; False: no more come

    def read() -> None:
        while more.get():
            for _ in reader:
                pass

    def submit(*request: Any) -> InferenceSession:
        session = reader.submit(*request)
        more.put(True)
        return session

    reading = threads.submit(read)
    try:
        sessions = arrive(submit)
    finally:
        more.put(False)
    reading.result()
    return sessions


def event_loop(manager: SchedulerManager, threads: Executor, arrive: Arrive) -> list[InferenceSession]:
    """One thread runs an event loop, in which a coroutine for each request submits it and reads its stream."""
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def read(*request: Any) -> InferenceSession:
        stream = manager.submit_async(*request)
        with suppress(LogitsError):
            async for _ in stream:
                pass
        return stream.session

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # it cancels the coroutines that are left
            runner.run(ended.wait())

    threads.submit(run)
    try:
        reads = arrive(lambda *request: asyncio.run_coroutine_threadsafe(read(*request), loop))
        return [one.result() for one in reads]
    finally:
        manager.close()
        loop.call_soon_threadsafe(ended.set)


def _read(stream: TokenStream) -> InferenceSession:
    with suppress(LogitsError):
        for _ in stream:
            pass
    return stream.session


READERS = {"sequential": sequential, "threads": thread_each, "one": one, "asyncio": event_loop}
