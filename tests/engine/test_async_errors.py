"""Streams of coroutines where something goes wrong."""

import asyncio
from contextlib import suppress

import pytest

from rosecourse import LogitsError, QueueFull, RequestError, SchedulerClosed
from tests.support.coroutines import read, run, until
from tests.support.failing import spoil
from tests.support.managers import LONG, Gate, params
from tests.support.oracles import hf_greedy, prompts_of

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


def test_where_no_event_loop_runs(manage):
    manager = manage()
    with pytest.raises(RequestError, match=r"^no event loop runs here: call submit_async in a coroutine, or submit$"):
        manager.submit_async([1, 2, 3])
    assert not manager._stepper.mailboxes


def test_a_bad_request_is_refused_at_once(manage):
    manager = manage()

    async def main():
        with pytest.raises(RequestError, match="the prompt is empty"):
            manager.submit_async([])
        return len(await read(manager.submit_async([1], params(2))))

    assert run(main()) == 2


def test_a_full_queue_and_a_closed_manager_refuse(manage, scheduler):
    gate = Gate(scheduler.runner, "prefill")
    manager = manage(max_waiting=2)

    async def main():
        streams = [manager.submit_async([1, 2], params(3))]
        gate.has_come()
        streams += [manager.submit_async([1, 2], params(3)) for _ in range(2)]
        with pytest.raises(QueueFull, match="max_waiting is 2"):
            manager.submit_async([1, 2], params(3))
        (mailbox,) = manager._of_loops.values()
        assert len(mailbox._queues) == 3, "who was refused left something behind"
        gate.open()
        assert [len(await read(stream)) for stream in streams] == [3] * 3
        await asyncio.get_running_loop().run_in_executor(None, manager.close)
        with pytest.raises(SchedulerClosed, match="make a new SchedulerManager"):
            manager.submit_async([1, 2], params(3))
        assert not mailbox._queues

    run(main())


def test_nan_ends_one_stream_and_not_its_neighbours(small_pair, manage, scheduler):
    hf, _ = small_pair
    prompts = prompts_of([4, 6, 5], 211)
    expected = hf_greedy(hf, prompts, 8)
    spoil(scheduler.engine, lambda session: session.prompt_ids == prompts[1] and len(session.completion_ids) == 3)
    manager = manage()

    async def main():
        streams = [manager.submit_async(prompt, params(8)) for prompt in prompts]
        assert [(await anext(streams[1])).token_id for _ in range(3)] == expected[1][:3]
        for _ in range(2):
            with pytest.raises(LogitsError, match="NaN"):
                await anext(streams[1])
        assert [await read(streams[0]), await read(streams[2])] == [expected[0], expected[2]]

    run(main())


def test_an_exception_in_a_step_reaches_every_coroutine(manage, scheduler):
    """After the tokens that were made before, and again for whoever asks again."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager = manage()

    async def reader(stream):
        got = []
        with suppress(SchedulerClosed):
            async for token in stream:
                got.append(token.token_id)
        with pytest.raises(SchedulerClosed, match="the scheduler stopped: ZeroDivisionError: planted"):
            await anext(stream)
        assert scheduler.engine.kv.num_available() == scheduler.engine.kv.num_blocks
        assert got == stream.session.completion_ids
        return len(got)

    def broken(*_):
        raise ZeroDivisionError("planted")

    async def main():
        streams = [manager.submit_async([1, 2, n], LONG) for n in range(6)]
        readers = [asyncio.ensure_future(reader(stream)) for stream in streams]
        await until(lambda: streams[0].session.times.read)
        scheduler.runner.launch = broken
        gate.open()
        return await asyncio.gather(*readers)

    assert sum(run(main())) >= 4
