"""Streams of coroutines: `submit_async`, whose tokens come in the event loop's thread. Every wait has a limit."""

import asyncio
import gc
import signal
import threading
from contextlib import suppress

import pytest

from tests.support.coroutines import read, run, until
from tests.support.managers import LIMIT, LONG, Gate, ids, params
from tests.support.oracles import hf_greedy, prompts_of

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


# -- tokens -------------------------------------------------------------------------------------------------------


def test_a_coroutine_reads_what_a_thread_reads(manage):
    manager = manage()
    expected = list(manager.submit([1, 2, 3], params(9)))

    async def main():
        return [token async for token in manager.submit_async([1, 2, 3], params(9))]

    assert run(main()) == expected
    assert [token.finish_reason for token in expected] == [None] * 8 + ["length"]


def test_a_token_has_two_times(manage):
    """When the host had it, and when its reader did, which is later and notes each once."""
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], params(9))
        await until(lambda: stream.session.finished)
        assert stream.session.times.read == []
        await read(stream)
        return stream.session.times

    times = run(main())
    assert len(times.tokens) == len(times.read) == 9
    assert times.read == sorted(times.read)
    assert times.read[0] > times.tokens[-1]


def test_many_coroutines_get_their_own_tokens(small_pair, manage):
    """More requests than the batch has places, in one loop, beside readers in threads."""
    hf, _ = small_pair
    prompts = prompts_of([3, 8, 1, 12, 5, 4, 9, 2] * 4, 211)
    manager = manage()

    async def main():
        return await asyncio.gather(*[read(manager.submit_async(prompt, params(12))) for prompt in prompts])

    blocking = [manager.submit(prompt, params(12)) for prompt in prompts[:4]]
    expected = hf_greedy(hf, prompts, 12)
    assert run(main()) == expected
    assert [ids(stream) for stream in blocking] == expected[:4]


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


# -- ends ---------------------------------------------------------------------------------------------------------


def test_the_end_stays_the_end(manage):
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], params(3))
        assert len(await read(stream)) == 3
        assert await read(stream) == []
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(main())


def test_cancel_ends_the_stream_and_twice_does_no_harm(manage):
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], LONG)
        await anext(stream)
        stream.cancel()
        stream.cancel()
        return 1 + len(await read(stream)), stream.session

    count, session = run(main())
    assert count == len(session.completion_ids) < 80
    assert session.finish_reason == "cancelled"


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_nobody_holds_is_cancelled(manage, begun):
    manager = manage()

    async def main():
        stream = manager.submit_async([1, 2, 3], LONG)
        if begun:
            await anext(stream)
        session = stream.session
        del stream
        gc.collect()
        await until(lambda: session.finished)
        return session.finish_reason

    assert run(main()) == "cancelled"


@pytest.mark.parametrize("drain", [False, True])
def test_close_ends_all_streams(manage, drain):
    manager = manage()

    async def main():
        streams = [manager.submit_async([1, 2, n], params(30)) for n in range(6)]
        await anext(streams[0])
        await asyncio.get_running_loop().run_in_executor(None, manager.close, drain)
        return [len(await read(stream)) for stream in streams], [stream.session for stream in streams]

    counts, sessions = run(main())
    assert [len(s.completion_ids) for s in sessions] == [counts[0] + 1, *counts[1:]]
    if drain:
        assert counts == [29] + [30] * 5
    else:
        assert "cancelled" in {session.finish_reason for session in sessions}


# -- slow and cancelled readers -----------------------------------------------------------------------------------


def test_a_coroutine_that_stalls_holds_up_nobody(manage, monkeypatch):
    """It blocks its loop, and with it the loop's other coroutines; requests run to their ends, and wait there."""
    manager = manage()
    other = manager.submit([4, 5], params(40))

    async def main():
        stream = manager.submit_async([1, 2, 3], params(40))
        await anext(stream)
        assert len(ids(other)) == 40  # blocks the loop until a thread's stream has ended
        while not stream.session.finished:
            pass
        assert manager._stepper.thread.is_alive()
        return 1 + len(await read(stream))

    assert run(main()) == 40


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
