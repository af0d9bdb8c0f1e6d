"""An engine that a manager steps is the manager's, and a manager that nobody holds any more ends. No sleeps."""

import gc
import threading

import pytest

from rosecourse import EngineBusy, OnlineScheduler, SchedulerManager
from tests.support.managers import LIMIT, LONG, Gate, ids, params, time_limit
from tests.support.scheduling import make_engine


def held_by_hand(engine):
    session = engine.new_session([5, 6, 7], params(3))
    engine.take_tokens([session], engine.prefill([session]))
    return session


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
