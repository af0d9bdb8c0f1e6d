"""Streams of coroutines: `submit_async`, whose tokens come in the event loop's thread. Every wait has a limit."""

import asyncio
import gc
import signal
import threading
from contextlib import suppress

import pytest

from tests.support.coroutines import read, run, until
from tests.support.managers import LIMIT, LONG, Gate, ids, params

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


# -- tokens -------------------------------------------------------------------------------------------------------


def test_loops_in_several_threads(manage):
    manager, got = manage(), {}
    expected = ids(manager.submit([1, 2, 3], params(12)))

    def loop(number):
        async def main():
            return await asyncio.gather(*[read(manager.submit_async([1, 2, 3], params(12))) for _ in range(4)])

        got[number] = run(main())

    threads = [threading.Thread(target=loop, args=(n,), daemon=True) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert got == {n: [expected] * 4 for n in range(3)}


@pytest.mark.parametrize("to_the_end", [True, False])
def test_one_manager_serves_one_loop_after_another(manage, to_the_end):
    """And keeps none of those that are gone, whatever they have left running."""
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], params(40))
        await anext(stream)
        if to_the_end:
            assert len(await read(stream)) == 39

    for _ in range(5):
        run(main())
    gc.collect()
    assert len(manager._of_loops) <= 1  # Python itself keeps the last one


def test_several_tasks_read_one_stream(manage):
    """Each token goes to one of them, and all of them end."""
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], params(20))
        parts = await asyncio.gather(*[read(stream) for _ in range(3)])
        return parts, stream.session.completion_ids

    parts, expected = run(main())
    assert sorted(token for part in parts for token in part) == sorted(expected)


# -- slow and cancelled readers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["cancel", "wait_for"])
def test_a_reader_that_is_cancelled_while_it_waits_loses_no_token(manage, scheduler, by):
    """Whoever reads next gets the token that it waited for."""
    gate = Gate(scheduler.runner, "launch", 2)
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], params(9))
        got = [(await anext(stream)).token_id]
        for _ in range(2):
            if by == "wait_for":
                with suppress(TimeoutError):
                    while len(got) < 9:
                        got.append((await asyncio.wait_for(anext(stream), 0.02)).token_id)
            else:
                task = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0.02)
                if task.done():
                    got.append(task.result().token_id)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        gate.open()
        return got + await read(stream), stream.session.completion_ids

    got, made = run(main())
    assert got == made
    assert len(made) == 9


def test_readers_are_cancelled_at_any_moment(manage):
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


# -- loops that go ------------------------------------------------------------------------------------------------


def test_a_loop_that_ends_cancels_what_its_tasks_read(manage):
    manager, sessions = manage(), []

    async def forever():
        stream = manager.submit_async([1, 2, 3], LONG)
        sessions.append(stream.session)
        await anext(stream)
        await asyncio.sleep(LIMIT)

    async def main():
        tasks = [asyncio.ensure_future(forever()) for _ in range(6)]
        await until(lambda: len(sessions) == 6 and sessions[0].times.read)
        return len(tasks)

    assert run(main()) == 6
    gc.collect()
    manager.close(drain=True)
    assert {session.finish_reason for session in sessions} <= {"cancelled", "length"}
    assert all(session.finished for session in sessions)


@pytest.mark.parametrize("drain", [False, True])
def test_a_loop_is_closed_while_its_requests_run(manage, scheduler, drain):
    """Somebody still holds the streams: nothing hangs, and in the end all blocks are back."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager, streams = manage(), []

    async def main():
        streams.extend(manager.submit_async([1, 2, n], params(20)) for n in range(6))
        await anext(streams[0])

    run(main())
    gate.has_come()
    other = manager.submit([7, 8], params(9))
    gate.open()
    assert len(ids(other)) == 9
    manager.close(drain)
    assert all(stream.session.finished for stream in streams)
    if drain:
        assert [len(stream.session.completion_ids) for stream in streams] == [20] * 6


def test_ctrl_c_ends_a_program_of_coroutines(manage, scheduler):
    """`asyncio.run` cancels the task that runs, and says KeyboardInterrupt; the manager can be used on."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager, ended = manage(), []

    async def main():
        stream = manager.submit_async([1, 2, 3], LONG)
        await anext(stream)
        asyncio.get_running_loop().call_later(0.05, signal.raise_signal, signal.SIGINT)
        try:
            await read(stream)
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
