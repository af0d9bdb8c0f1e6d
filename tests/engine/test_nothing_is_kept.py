"""Whoever is dropped is gone at once, by reference counts alone; and nobody waits for a thread that is not there."""

import asyncio
import gc
import os
import signal
import traceback
import weakref

import pytest

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    SchedulerClosed,
    SchedulerManager,
    TokenReader,
)
from rosecourse.lessons import LESSONS

PROMPT = [5, 6, 7, 8, 9]
DRAWN = SamplingParams(max_new_tokens=6, stop_on_eos=False, temperature=0.7)


@pytest.fixture(autouse=True)
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def computes(engine):
    """By all ways that end by themselves, and some that are left in the middle."""
    engine.generate([PROMPT, PROMPT[:2]], DRAWN, n=2)
    next(engine.stream(PROMPT, DRAWN))
    scheduler = OnlineScheduler(engine)
    sessions = [engine.new_session(PROMPT, DRAWN) for _ in range(3)]
    for session in sessions:
        scheduler.submit(session)
    scheduler.step()
    scheduler.step()
    scheduler.cancel(sessions[0])


def manages(engine):
    with SchedulerManager(OnlineScheduler(engine)) as manager:
        list(manager.submit(PROMPT, DRAWN))
        reader = TokenReader(manager)
        reader.submit(PROMPT, DRAWN)
        list(reader)


def leaves_sessions(engine):
    session = engine.new_session(PROMPT, DRAWN)
    logits = engine.prefill([session])
    engine.take_tokens([session], logits)
    fork = engine.fork(session)
    engine.decode_step_sessions([session, fork])


USES = [computes, manages, leaves_sessions]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_a_dropped_engine_is_gone(small_model, rung, use):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=4, block_size=4, max_seq_len=32), rung.after)
    use(engine)
    pool, dropped = weakref.ref(engine.kv.keys), weakref.ref(engine)
    del engine
    assert dropped() is None
    assert pool() is None


def engine_of(model):
    return InferenceEngine(model, EngineConfig(max_batch_size=4, block_size=4, max_seq_len=64))


def in_a_child(work):
    """Whether some work ends well in a child process, within ten seconds."""
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            work()
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_in_a_child_process_nobody_waits_for_the_thread_of_the_parent(small_model):
    with SchedulerManager(OnlineScheduler(engine_of(small_model))) as manager:
        stream = manager.submit(PROMPT, SamplingParams(max_new_tokens=40, stop_on_eos=False))
        reader = TokenReader(manager)
        reader.submit(PROMPT, DRAWN)

        def refused():
            with pytest.raises(SchedulerClosed, match="make a new engine and a new SchedulerManager after a fork"):
                manager.submit(PROMPT, DRAWN)
            with pytest.raises(SchedulerClosed, match="after a fork"):
                reader.submit(PROMPT, DRAWN)
            with pytest.raises(SchedulerClosed, match="after a fork"):
                list(stream)
            with pytest.raises(SchedulerClosed, match="after a fork"):
                list(reader)
            stream.cancel()
            manager.close()
            manager.close(drain=True)
            assert len(engine_of(small_model).generate(PROMPT, DRAWN)[0].token_ids) == 6

        assert in_a_child(refused)
        assert len(list(stream)) == 40, "the parent goes on"


def test_a_stream_that_is_read_in_another_event_loop_says_so(small_model):
    with SchedulerManager(OnlineScheduler(engine_of(small_model))) as manager:

        async def submitted():
            return manager.submit_async(PROMPT, DRAWN)

        stream = asyncio.run(submitted())

        async def read():
            return [token async for token in stream]

        with pytest.raises(RequestError, match="the stream is another event loop's"):
            asyncio.run(asyncio.wait_for(read(), 10))
