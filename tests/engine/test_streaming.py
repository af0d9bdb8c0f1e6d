"""SchedulerManager: one thread steps, the others submit, read and cancel."""

import gc
import subprocess
import sys
import threading
import time

import pytest

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    SchedulerClosed,
    SchedulerManager,
    lesson,
)
from rosecourse.lessons.l035 import KVAppend
from tests.support.oracles import hf_greedy, prompts_of

LONG = SamplingParams(max_new_tokens=80, stop_on_eos=False)


@pytest.fixture
def scheduler(small_model):
    config = EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False)
    return OnlineScheduler(InferenceEngine(small_model, config))


@pytest.fixture
def manager(scheduler):
    before = threading.active_count()
    manager = SchedulerManager(scheduler)
    yield manager
    manager.close()
    assert threading.active_count() == before
    assert not scheduler.has_work
    scheduler.engine.kv.audit([])


def test_many_submitters_get_their_own_tokens(small_pair, manager):
    """Hazard 22, in small: eight threads submit and read at once (under load it is in `test_threads.py`)."""
    hf, _ = small_pair
    prompts = prompts_of([3, 8, 1, 12, 5, 4, 9, 2], 211)
    got = {}

    def read(number):
        stream = manager.submit(prompts[number], SamplingParams(max_new_tokens=12, stop_on_eos=False))
        got[number] = [token.token_id for token in stream]

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [got[n] for n in range(8)] == hf_greedy(hf, prompts, 12)


def test_tokens_come_one_by_one_and_the_stream_stays_ended(manager):
    stream = manager.submit([1, 2, 3], SamplingParams(max_new_tokens=3, stop_on_eos=False))
    assert [token.finish_reason for token in stream] == [None, None, "length"]
    assert list(stream) == []


def test_cancel_ends_the_stream_and_twice_does_no_harm(manager):
    stream = manager.submit([1, 2, 3], LONG)
    next(stream)
    stream.cancel()
    stream.cancel()
    assert len(list(stream)) < 79
    assert stream.session.finish_reason == "cancelled"


def test_a_reader_that_goes_away_is_cancelled(manager):
    session = manager.submit([1, 2, 3], LONG).session
    gc.collect()
    deadline = time.monotonic() + 60
    while not session.finished and time.monotonic() < deadline:
        time.sleep(0.001)
    assert session.finish_reason == "cancelled"


def test_a_bad_request_is_refused_in_the_submitting_thread(manager):
    with pytest.raises(RequestError, match="the prompt is empty"):
        manager.submit([])
    assert len(list(manager.submit([1], SamplingParams(max_new_tokens=2, stop_on_eos=False)))) == 2


def test_close_cancels_what_runs_and_answers_everyone(manager):
    streams = [manager.submit([1, 2, n], LONG) for n in range(8)]
    next(streams[0])
    manager.close()
    assert all(len(list(stream)) <= 80 for stream in streams)
    assert {s.session.finish_reason for s in streams} <= {"cancelled", "length"}
    assert "cancelled" in {s.session.finish_reason for s in streams}


def test_close_with_draining_lets_everything_finish(manager):
    streams = [manager.submit([1, 2, n], SamplingParams(max_new_tokens=9, stop_on_eos=False)) for n in range(8)]
    manager.close(drain=True)
    assert [len(list(stream)) for stream in streams] == [9] * 8


def test_submit_after_close_is_refused(manager):
    manager.close()
    with pytest.raises(SchedulerClosed, match="make a new SchedulerManager"):
        manager.submit([1])


def test_an_exception_in_a_step_reaches_every_reader(manager, monkeypatch):
    streams = [manager.submit([1, 2, n], LONG) for n in range(6)]
    next(streams[0])

    def broken(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(manager.scheduler.runner, "launch", broken)
    for stream in streams:
        with pytest.raises(SchedulerClosed, match="ZeroDivisionError: planted"):
            list(stream)
        with pytest.raises(SchedulerClosed):  # and again, for whoever else reads it
            next(stream)
    with pytest.raises(SchedulerClosed) as caught:
        manager.submit([1])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_readers_are_answered_even_if_the_cleanup_fails(small_model):
    class FreesTooMuch(KVAppend):
        steps = 0

        def __call__(self, sessions, keys, values):
            super().__call__(sessions, keys, values)
            self.steps += 1
            if self.steps == 3:
                self.kv.free(sessions[0].block_ids_per_layer)

    config = EngineConfig(block_size=4, max_batch_size=4)
    scheduler = OnlineScheduler(InferenceEngine(small_model, config, lesson("061").after.with_(kv_append=FreesTooMuch)))
    with SchedulerManager(scheduler) as manager:
        streams = [manager.submit([1, 2, n], LONG) for n in range(3)]
        for stream in streams:
            with pytest.raises(SchedulerClosed):
                list(stream)


def test_a_request_submitted_just_before_close_is_answered(scheduler):
    for _ in range(20):
        manager = SchedulerManager(scheduler)
        stream = manager.submit([1, 2, 3], LONG)
        manager.close()
        assert len(list(stream)) < 80
        assert stream.session.finish_reason == "cancelled"


def test_draining_by_two_threads_at_once_still_drains(manager):
    streams = [manager.submit([1, 2, n], SamplingParams(max_new_tokens=30, stop_on_eos=False)) for n in range(6)]
    closers = [threading.Thread(target=manager.close, kwargs={"drain": True}) for _ in range(2)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(timeout=60)
    assert [len(list(stream)) for stream in streams] == [30] * 6


def test_cancel_works_while_draining(manager):
    keep, drop = (manager.submit([1, 2, n], LONG) for n in (1, 2))
    closer = threading.Thread(target=manager.close, kwargs={"drain": True})
    closer.start()
    drop.cancel()
    closer.join(timeout=60)
    assert len(list(keep)) == 80
    assert drop.session.finish_reason in ("cancelled", "length")


def test_two_readers_of_one_stream_both_end(manager):
    stream = manager.submit([1, 2, 3], SamplingParams(max_new_tokens=9, stop_on_eos=False))
    counts = []
    readers = [threading.Thread(target=lambda: counts.append(len(list(stream)))) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=60)
    assert sum(counts) == 9


def test_a_program_may_end_with_requests_running():
    """No abort at exit, whatever the program left open."""
    code = (
        "import rosecourse as rc; e = rc.InferenceEngine(rc.load_model(device='cpu'));"
        "m = rc.SchedulerManager(rc.OnlineScheduler(e));"
        "s = m.submit('Hello', rc.SamplingParams(max_new_tokens=400, stop_on_eos=False)); next(s)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_as_a_context_manager(scheduler):
    with SchedulerManager(scheduler) as manager:
        stream = manager.submit([1, 2, 3], SamplingParams(max_new_tokens=4, stop_on_eos=False))
        assert len(list(stream)) == 4
    assert not manager._stepper.thread.is_alive()
