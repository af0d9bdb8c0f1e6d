"""Streams of coroutines: `submit_async`, whose tokens come in the event loop's thread. Every wait has a limit."""

import asyncio
import gc
import signal

import pytest

from rosecourse import RequestError
from tests.support.managers import LIMIT, LONG, Gate, ids, params

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


def run(coroutine):
    """Run it to its end, in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(coroutine, LIMIT))


def test_readers_cancelled_at_any_moment_lose_no_token(manage):
    """A token is there, or the task is cancelled, in the same turn of the loop: each token is read once."""
    manager = manage()

    async def main():
        stream, got, tries = manager.submit_async([1, 2, 3], LONG), [], 0
        while True:
            task = asyncio.ensure_future(anext(stream))
            for _ in range(tries % 4):
                await asyncio.sleep(0)
            tries += 1
            task.cancel()
            (one,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(one, StopAsyncIteration):
                return got, stream.session.completion_ids, tries
            if not isinstance(one, asyncio.CancelledError):
                got.append(one.token_id)

    got, made, tries = run(main())
    assert got == made
    assert len(made) == 80 < tries


@pytest.mark.parametrize("drain", [False, True])
def test_loops_closed_while_requests_run_leave_nothing(manage, scheduler, drain):
    """Somebody still holds the streams: nothing hangs, no loop is kept, and in the end all blocks are back."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager, streams = manage(), []

    async def main():
        streams.extend(manager.submit_async([1, 2, n], params(20)) for n in range(6))
        await anext(streams[-6])

    run(main())
    gate.has_come()
    other = manager.submit([7, 8], params(9))
    gate.open()
    run(main())
    assert len(ids(other)) == 9
    manager.close(drain)
    assert {stream.session.finish_reason for stream in streams} <= ({"length"} if drain else {"length", "cancelled"})
    streams.clear()
    gc.collect()
    assert len(manager._of_loops) <= 1  # Python itself keeps the last one


def test_ctrl_c_ends_a_program_of_coroutines(manage, scheduler):
    """`asyncio.run` cancels the task that runs, and says KeyboardInterrupt; the manager can be used on."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager, ended = manage(), []

    async def main():
        stream = manager.submit_async([1, 2, 3], LONG)
        await anext(stream)
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        try:
            async for _ in stream:
                pass
        finally:
            ended.append(stream.session)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert signal.getsignal(signal.SIGINT) is handler
    gate.open()
    gc.collect()
    assert len(ids(manager.submit([1, 2], params(3)))) == 3
    manager.close(drain=True)
    assert [session.finish_reason for session in ended] == ["cancelled"]


def test_stream_that_is_read_in_another_event_loop_says_so(manage):
    manager = manage()

    async def submitted():
        return manager.submit_async([1, 2, 3], params(3))

    async def read(stream):
        await anext(stream)

    with pytest.raises(RequestError, match="the stream is another event loop's"):
        run(read(run(submitted())))
