"""An engine that a manager steps is the manager's, and a manager that nobody holds any more ends. No sleeps."""

import gc
import threading

import pytest

from rosecourse import EngineBusy, OnlineScheduler, SchedulerManager
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, params, time_limit
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine


def stray_calls(engine, computed):
    """What another thread may come with; `computed`: a session that has its blocks."""
    return {
        "generate": lambda: engine.generate([1, 2], params(2)),
        "stream": lambda: next(engine.stream([1, 2], params(2))),
        "reserve": lambda: engine.reserve(engine.new_session([1, 2], params(2))),
        "prefill": lambda: engine.prefill([engine.new_session([1, 2], params(2))]),
        "decode_step_sessions": lambda: engine.decode_step_sessions([computed]),
        "fork": lambda: engine.fork(computed),
        "can_append": lambda: engine.can_append([computed]),
        "audit": lambda: engine.audit([computed]),
        "another scheduler": lambda: OnlineScheduler(engine).step(),
        "another manager": lambda: SchedulerManager(OnlineScheduler(engine)),
    }


def held_by_hand(engine):
    session = engine.new_session([5, 6, 7], params(3))
    engine.take_tokens([session], engine.prefill([session]))
    return session


def test_stray_calls_end_nobodys_stream(small_pair):
    """Hazard 37: two threads call whatever they can while others read: they are refused, and each stream is right."""
    hf, model = small_pair
    engine = make_engine(model)
    computed = held_by_hand(engine)
    prompts = prompts_of([4, 6, 5, 7], 211)
    expected = hf_greedy(hf, prompts, 20)
    read = threading.Event()

    def stray():
        while not read.wait(0.002):  # else they would keep the interpreter to themselves
            for call in stray_calls(engine, computed).values():
                with pytest.raises(EngineBusy, match="submit to the manager, or close it first"):
                    call()

    def reader():
        try:
            for _ in range(2):
                streams = [manager.submit(prompt, params(20)) for prompt in prompts]
                assert [ids(stream) for stream in streams] == expected
        finally:
            read.set()

    with time_limit(), SchedulerManager(OnlineScheduler(engine)) as manager:
        in_threads(reader, stray, stray)
    engine.take_tokens([computed], engine.decode_step_sessions([computed]))  # `close` has handed the engine back
    engine.free(computed)
    engine.audit([])


def test_a_session_is_given_back_while_a_manager_has_the_engine(small_model):
    """`free`, and the end of a stream that nobody reads any more, wait for the step and are never refused."""
    engine = make_engine(small_model, prefix_cache=False)
    computed = held_by_hand(engine)
    begun = engine.stream([1, 2], LONG)
    next(begun)
    gate = Gate(engine.pipeline, "launch")
    with time_limit(), SchedulerManager(OnlineScheduler(engine)) as manager:
        stream = manager.submit([3, 4], params(9))
        gate.has_come()
        freed = threading.Event()
        freeing = threading.Thread(target=lambda: (engine.free(computed), begun.close(), freed.set()), daemon=True)
        freeing.start()
        assert not freed.is_set()
        gate.open()
        freeing.join(LIMIT)
        assert freed.is_set()
        assert len(ids(stream)) == 9
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks


def test_a_manager_takes_no_engine_that_is_in_use(small_model):
    """Hazard 37: it is refused before it has a thread, and the thread that was inside does not notice."""
    engine = make_engine(small_model)
    gate = Gate(engine.pipeline, "launch", 2)
    made = []
    with time_limit():
        running = threading.Thread(target=lambda: made.append(engine.generate([1, 2, 3], params(8))), daemon=True)
        running.start()
        gate.has_come()
        before = threading.active_count()
        with pytest.raises(EngineBusy, match="another thread is using this engine"):
            SchedulerManager(OnlineScheduler(engine))
        assert threading.active_count() == before
        gate.open()
        running.join(LIMIT)
    assert len(made[0][0].token_ids) == 8
    SchedulerManager(OnlineScheduler(engine)).close()


def test_a_manager_that_cannot_start_its_thread_hands_the_engine_back(small_model, monkeypatch):
    engine = make_engine(small_model)

    def cannot(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            SchedulerManager(OnlineScheduler(engine))
    gc.collect()
    assert len(engine.generate([1, 2], params(3))[0].token_ids) == 3


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_manager_that_nobody_holds_ends_its_thread(small_model, running, in_a_cycle):
    """Hazard 37: idle, or with requests whose streams are gone as well; all blocks come back."""
    engine = make_engine(small_model, prefix_cache=False)
    with time_limit():
        manager = SchedulerManager(OnlineScheduler(engine))
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "rosecourse-scheduler"]
        if running:
            stream = manager.submit([1, 2, 3], LONG)
            next(stream)
            session = stream.session
            del stream
        if in_a_cycle:
            manager.myself = manager
        del manager
        gc.collect()
        thread.join(LIMIT)
        assert not thread.is_alive()
    if running:
        assert session.finish_reason == "cancelled"
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
    assert len(engine.generate([1, 2], params(3))[0].token_ids) == 3


def test_a_stream_that_is_held_keeps_its_manager(small_model):
    engine = make_engine(small_model)
    with time_limit():
        stream = SchedulerManager(OnlineScheduler(engine)).submit([1, 2, 3], params(30))
        gc.collect()
        assert len(ids(stream)) == 30
        with pytest.raises(EngineBusy):
            engine.generate([1, 2], params(3))
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "rosecourse-scheduler"]
        del stream
        gc.collect()
        thread.join(LIMIT)
        assert not thread.is_alive()
