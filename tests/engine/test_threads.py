"""SchedulerManager among threads: closed by any of them, and under load. Every wait has a limit; no sleeps."""

import sys
import threading
from collections import deque
from queue import SimpleQueue

import pytest

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    QueueFull,
    SchedulerClosed,
    SchedulerManager,
    lesson,
)
from rosecourse.lessons.l035 import KVAppend
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, managers, params
from tests.support.oracles import prompts_of
from tests.support.scheduling import make_engine

# -- close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drains", [(False,) * 4, (True,) * 4, (True, False, True, False)])
def test_close_from_several_threads_at_once(manage, scheduler, drains):
    """Each of them returns when the thread has ended; who does not want to drain prevails."""
    before = set(threading.enumerate())
    manager = manage()
    streams = [manager.submit([1, 2, n], params(20)) for n in range(9)]
    together = threading.Barrier(len(drains), timeout=LIMIT)

    def close(drain):
        together.wait()
        manager.close(drain)
        assert not manager._stepper.thread.is_alive()

    in_threads(*[lambda d=drain: close(d) for drain in drains])
    assert set(threading.enumerate()) == before
    lengths = [len(ids(stream)) for stream in streams]
    if all(drains):
        assert lengths == [20] * 9
    else:
        assert {stream.session.finish_reason for stream in streams} <= {"length", "cancelled"}


def test_close_without_draining_ends_a_close_that_drains(manage, scheduler):
    gate = Gate(scheduler.runner, "launch", 5)
    manager = manage()
    joining = threading.Semaphore(0)
    join = manager._stepper.thread.join
    manager._stepper.thread.join = lambda: (joining.release(), join())
    stream = manager.submit([1, 2, 3], LONG)
    gate.has_come()
    closers = [threading.Thread(target=manager.close, args=(drain,), daemon=True) for drain in (True, False)]
    for closer in closers:
        closer.start()
        assert joining.acquire(timeout=LIMIT)
    gate.open()
    for closer in closers:
        closer.join(LIMIT)
        assert not closer.is_alive()
    assert len(ids(stream)) == 6
    assert stream.session.finish_reason == "cancelled"


@pytest.mark.parametrize("drain", [False, True])
def test_a_reader_may_close(manage, drain):
    manager = manage()
    other = manager.submit([4, 5], params(12))
    stream = manager.submit([1, 2, 3], params(12))
    got = 0
    for _ in stream:
        got += 1
        manager.close(drain)
    assert got == len(stream.session.completion_ids)
    assert len(ids(other)) == len(other.session.completion_ids)
    if drain:
        assert got == 12


def test_the_stepping_thread_may_close(manage, scheduler):
    """An admission policy that does: it cannot wait for itself, and ends after its step."""
    gate = Gate(scheduler.runner, "prefill")
    scheduler.admission = lambda waiting: manager.close() or 0
    manager = manage()
    stream = manager.submit([1, 2, 3], LONG)
    gate.has_come()
    gate.open()
    assert len(ids(stream)) == 1
    assert stream.session.finish_reason == "cancelled"
    with pytest.raises(SchedulerClosed, match="the scheduler is closed: make a new SchedulerManager"):
        manager.submit([1])


@pytest.mark.parametrize("drain", [False, True])
def test_submitters_race_with_close(manage, drain):
    """Whoever gets a stream gets its end; whoever comes too late is told so."""
    manager = manage(max_waiting=None)
    enough, lengths = threading.Semaphore(0), []

    def submit_for_ever(number, streams):
        while True:
            streams.append(manager.submit([1, number], params(2)))
            enough.release()

    def submit(number):
        streams = []
        with pytest.raises(SchedulerClosed, match="make a new SchedulerManager"):
            submit_for_ever(number, streams)
        lengths.extend(len(ids(stream)) for stream in streams)  # none, if the others had forty before it began

    def close():
        for _ in range(40):
            assert enough.acquire(timeout=LIMIT)
        manager.close(drain)

    in_threads(*[lambda n=n: submit(n) for n in range(1, 4)], close)
    assert len(lengths) >= 40
    assert set(lengths) == {2} if drain else set(lengths) <= {0, 1, 2}


def test_a_request_submitted_just_before_close_is_answered(scheduler):
    for _ in range(20):
        manager = SchedulerManager(scheduler)
        stream = manager.submit([1, 2, 3], LONG)
        manager.close()
        assert len(ids(stream)) < 80
        assert stream.session.finish_reason == "cancelled"


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


def test_two_readers_of_one_stream_both_end(manage):
    stream = manage().submit([1, 2, 3], params(9))
    counts = []
    in_threads(*[lambda: counts.append(len(ids(stream)))] * 2)
    assert sum(counts) == 9


# -- everything at once -------------------------------------------------------------------------------------------


def test_submitters_readers_and_cancellers_at_once(small_model):
    """Hazard 22: 600 requests from four threads, over a pool that is too small for the batch, with a short queue.

    A third is read by its submitter, a third by other threads, the rest is cancelled by yet others or dropped. All are
    answered with the right tokens, or the first of them; no block is missing and no thread is left.
    """
    prompts = prompts_of([5] * 8, 211)
    wanted = [params(new) for new in (3, 9) * 4]  # the long ones may outgrow what admission leaves
    each = 150
    expected = [g.token_ids for g in make_engine(small_model).generate(prompts, wanted)]
    engine = make_engine(small_model, max_batch_size=12, num_blocks=20, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    to_read, to_cancel = SimpleQueue(), SimpleQueue()
    counts = {"read": [], "cancelled": [], "refused": []}

    def read(number, stream):
        assert ids(stream) == expected[number]
        counts["read"].append(number)

    def patiently(number, mine):
        """Submit; while the queue is full read streams of one's own, which makes room."""
        while True:
            try:
                return manager.submit(prompts[number], wanted[number])
            except QueueFull:
                counts["refused"].append(number)
                if mine:
                    read(*mine.popleft())

    def submitter(offset):
        mine = deque()
        for n in range(each):
            number = (n + offset) % len(prompts)
            stream = patiently(number, mine)
            place = (mine.append, to_read.put, to_cancel.put)[n % 3]
            if n % 9 != 8:  # else it is dropped
                place((number, stream))
        for one in mine:
            read(*one)

    def reader():
        while (one := to_read.get(timeout=LIMIT)) is not None:
            read(*one)

    def canceller():
        while (one := to_cancel.get(timeout=LIMIT)) is not None:
            number, stream = one
            got = [next(stream).token_id] if number % 2 else []
            stream.cancel()
            got += ids(stream)
            assert got == expected[number][: len(got)]
            assert stream.session.finish_reason == ("length" if got == expected[number] else "cancelled")
            counts["cancelled"].append(number)

    left = threading.Semaphore(0)

    def submit(offset):
        try:
            submitter(offset)
        finally:
            left.release()

    def finish():
        for _ in range(4):
            assert left.acquire(timeout=LIMIT)
        for queue in (to_read, to_read, to_cancel, to_cancel):
            queue.put(None)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with managers(scheduler) as manage:
            manager = manage(max_waiting=16)
            in_threads(*[lambda n=n: submit(n) for n in range(4)], reader, reader, canceller, canceller, finish)
            manager.close(drain=True)
    finally:
        sys.setswitchinterval(interval)
    assert len(counts["read"]) == 4 * 2 * each // 3
    assert len(counts["cancelled"]) == 4 * len([n for n in range(each) if n % 3 == 2 and n % 9 != 8])
    assert counts["refused"]
    assert not manager._stepper.mailboxes
