"""Whoever is dropped is gone: engines by reference counts alone, managers and streams with their threads."""

import gc
import subprocess
import sys
import threading
import types
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest

from rosecourse import (
    EngineBusy,
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    SamplingParams,
    SchedulerManager,
    TokenReader,
)
from rosecourse.engine import stepper
from rosecourse.lessons import LESSONS
from tests.support.managers import LIMIT, LONG, Gate, ids, params, time_limit
from tests.support.scheduling import make_engine

PROMPT = [5, 6, 7, 8, 9]
DRAWN = SamplingParams(max_new_tokens=6, stop_on_eos=False, temperature=0.7)


def assert_free(engine):
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
    assert len(engine.generate([1, 2], params(3))[0].token_ids) == 3


def uses(engine):
    """By all ways that end by themselves, and some that are left in the middle."""
    engine.generate([PROMPT, PROMPT[:2]], DRAWN, n=2)
    next(engine.stream(PROMPT, DRAWN))
    with SchedulerManager(OnlineScheduler(engine)) as manager:
        list(manager.submit(PROMPT, DRAWN))
        reader = TokenReader(manager)
        reader.submit(PROMPT, DRAWN)
        list(reader)
    scheduler = OnlineScheduler(engine)
    sessions = [engine.new_session(PROMPT, DRAWN) for _ in range(3)]
    for session in sessions:
        scheduler.submit(session)
    scheduler.step()
    scheduler.step()
    scheduler.cancel(sessions[0])
    session = engine.new_session(PROMPT, DRAWN)
    engine.take_tokens([session], engine.prefill([session]))
    engine.decode_step_sessions([session, engine.fork(session)])


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_dropped_engine_is_gone(small_model, rung):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=4, block_size=4, max_seq_len=32), rung.after)
    gc.collect()
    gc.disable()
    try:
        uses(engine)
        pool, dropped = weakref.ref(engine.kv.keys), weakref.ref(engine)
        del engine
        assert dropped() is pool() is None
    finally:
        gc.enable()


def test_session_is_given_back_while_a_manager_has_the_engine(small_model):
    """`free`, and the end of a stream that nobody reads any more, wait for the step and are never refused."""
    engine = make_engine(small_model, prefix_cache=False)
    computed = engine.new_session([5, 6, 7], params(3))
    engine.take_tokens([computed], engine.prefill([computed]))
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
    assert_free(engine)


def test_manager_without_a_thread_hands_the_engine_back(small_model, monkeypatch):
    engine = make_engine(small_model)

    def cannot(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            SchedulerManager(OnlineScheduler(engine))
    gc.collect()
    assert_free(engine)


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_manager_that_nobody_holds_ends_its_thread(small_model, running, in_a_cycle):
    """Hazard 37: idle, or with requests whose streams are gone too; a stream that is held keeps it."""
    engine = make_engine(small_model, prefix_cache=False)
    with time_limit():
        manager = SchedulerManager(OnlineScheduler(engine))
        (thread,) = [thread for thread in threading.enumerate() if thread.name == "rosecourse-scheduler"]
        stream = manager.submit([1, 2, 3], LONG if running else params(3))
        if in_a_cycle:
            manager.myself = manager
        del manager
        gc.collect()
        next(stream)
        if not running:
            assert len(list(stream)) == 2
        with pytest.raises(EngineBusy):
            engine.generate([1, 2], params(3))
        session = stream.session
        del stream
        gc.collect()
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert session.finish_reason == ("cancelled" if running else "length")
    assert_free(engine)


class CollectsGarbage(threading.Condition):
    """Whoever gets this lock collects garbage at once, and with it a stream that is in a cycle."""

    litter: SimpleQueue = SimpleQueue()

    def __enter__(self):
        entered = super().__enter__()
        with suppress(Empty):
            cycle = [self.litter.get_nowait()]
            cycle.append(cycle)
            del cycle
            gc.collect(0)
        return entered


def test_garbage_collection_under_the_lock_may_cancel(manage, monkeypatch):
    """A stream's end calls cancel, in whatever thread it happens to end: here in one that holds the lock already."""
    patched = {"Condition": CollectsGarbage, "Thread": threading.Thread, "current_thread": threading.current_thread}
    monkeypatch.setattr(stepper, "threading", types.SimpleNamespace(**patched))
    manager = manage()
    sessions = []
    for n in range(12):
        stream = manager.submit([1, 2, n], LONG)
        sessions.append(stream.session)
        CollectsGarbage.litter.put(stream)
        del stream
        assert len(ids(manager.submit([3, n], params(2)))) == 2
    manager.close(drain=True)
    assert CollectsGarbage.litter.empty()
    assert [session.finish_reason for session in sessions] == ["cancelled"] * 12


PROGRAM = """
import threading, rosecourse as rc
model = rc.load_model(device='cpu')
params = lambda new: rc.SamplingParams(max_new_tokens=new, stop_on_eos=False)
def start():
    manager = rc.SchedulerManager(rc.OnlineScheduler(rc.InferenceEngine(model)))
    stream = manager.submit('Hello', params(400)); next(stream)
    return manager, stream
held, dropped = start(), start()[0]
manager, stream = start(); manager.me = manager; stream.me = stream; del manager, stream
reader = held[0].submit('It', params(40))
threading.Thread(target=lambda: print(len(list(reader)))).start()
"""


def test_program_may_end_whatever_it_holds():
    """With requests that run; a reader that is no daemon gets its last token before the interpreter goes."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "40\n", "")
