"""Queues: the order of arrival, what a call costs when many wait, and how many may wait for a SchedulerManager."""

import random
import sys
import threading
from contextlib import contextmanager

import pytest

from rosecourse import ConfigError, OnlineScheduler, QueueFull, SamplingParams, SchedulerManager
from rosecourse.engine.queues import Queue
from rosecourse.request.session import InferenceSession
from tests.support.managers import LIMIT, LONG, Gate, ids, params
from tests.support.scheduling import make_engine

PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)


class Counted(InferenceSession):
    """A session that counts how often one was compared with another: a walk in C shows in nothing else."""

    comparisons = 0
    __hash__ = InferenceSession.__hash__

    def __eq__(self, other):
        Counted.comparisons += 1
        return self is other


def session(engine=None):
    return Counted([1, 2, 3], PARAMS, engine=engine and engine.ref)


def test_a_queue_is_a_list_of_sessions_that_are_in_it_once():
    rng, queue, expected = random.Random(0), Queue(), []
    for _ in range(2000):
        action = rng.randrange(4)
        if action == 0 and len(expected) < 9:
            new = session()
            queue.append(new)
            expected.append(new)
        elif action == 1 and len(expected) < 9:
            new = session()
            queue.append_first(new)
            expected.insert(0, new)
        elif expected:
            gone = rng.choice(expected)
            for _ in range(2):  # the second time it is not there
                queue.discard(gone)
            expected.remove(gone)
            assert gone not in queue
        assert (list(queue), len(queue), bool(queue)) == (expected, len(expected), bool(expected))
        assert list(reversed(queue)) == expected[::-1]
        assert all(one in queue for one in expected)
        for number in range(-len(expected), len(expected)):
            assert queue[number] is expected[number]
        assert (queue[1:3], queue[::-2]) == (expected[1:3], expected[::-2])
    for number in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            queue[number]


@contextmanager
def operations(counts):
    """Appends to `counts` how many lines of the package were executed, and how often sessions were compared."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if "rosecourse" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before, tracer = Counted.comparisons, sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(tracer)
    counts.append((lines, Counted.comparisons - before))


def costs(model, waiting):
    """What each call costs while so many sessions wait."""
    engine = make_engine(model, max_batch_size=2, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    running = [session(engine) for _ in range(2)]
    for one in running:
        scheduler.submit(one)
    scheduler.step()
    forks = [engine.fork(running[0]) for _ in range(3)]
    scheduler.submit(forks[0])
    queued = [session(engine) for _ in range(waiting)]
    for number, one in enumerate(queued):
        scheduler.submit(one)
        if number == waiting // 2:
            scheduler.submit(forks[1])
    scheduler.submit(forks[2])
    last = session(engine)

    def preempt():
        with engine.guard:
            scheduler._preempt_newest()

    calls = [
        lambda: scheduler.submit(last),
        lambda: scheduler.cancel(last),
        lambda: scheduler.cancel(queued[waiting // 2]),
        lambda: scheduler.cancel(forks[1]),
        lambda: scheduler.cancel(running[1]),
        preempt,  # the last of the forks that wait
        preempt,  # the first
        scheduler.step,  # one place: the first fork is computed anew in it
        preempt,  # one that runs
        scheduler.step,  # it comes back
        lambda: len(scheduler.waiting) + (queued[-1] in scheduler.waiting),
    ]
    counts = []
    for call in calls:
        with operations(counts):
            call()
    assert scheduler.stats.preemptions == 3
    assert [s for s in scheduler.waiting if s in forks] == [forks[2]]
    return counts


def test_no_call_takes_longer_when_more_sessions_wait(small_model):
    """Hazard 38: lines and comparisons are counted, not time."""
    assert costs(small_model, 1000) == costs(small_model, 4000)


# -- the bounded queue of a manager -----------------------------------------------------------------------------------


def test_what_the_scheduler_has_taken_over_counts_as_waiting(manage, scheduler):
    """Held in the second prefill, with one place: two are in the scheduler's own queue, and one is on its way there."""
    scheduler.max_batch_size = 1
    gate = Gate(scheduler.runner, "launch", 2)
    first = Gate(scheduler.runner, "prefill")
    manager = manage(max_waiting=3)
    streams = [manager.submit([1, 2, 3], params(4))]
    first.has_come()
    streams += [manager.submit([1, 2, n], params(4)) for n in range(2)]
    first.open()
    gate.has_come()
    assert len(scheduler.waiting) == 2
    streams.append(manager.submit([1, 2, 3], params(4)))
    with pytest.raises(QueueFull, match="3 requests wait already"):
        manager.submit([1, 2, 3], params(4))
    gate.open()
    assert [len(ids(stream)) for stream in streams] == [4] * 4


@pytest.mark.parametrize(("settings", "refused"), [({}, 1), ({"max_waiting": None}, 0)])
def test_the_queue_is_bounded_unless_told_otherwise(manage, scheduler, settings, refused):
    gate = Gate(scheduler.runner, "prefill")
    manager = manage(**settings)
    streams = [manager.submit([1], LONG)]
    gate.has_come()
    streams += [manager.submit([1], LONG) for _ in range(1024)]
    full = 0
    try:
        streams.append(manager.submit([1], LONG))
    except QueueFull:
        full += 1
    assert full == refused
    closer = threading.Thread(target=manager.close)
    closer.start()
    gate.open()
    closer.join(LIMIT)
    assert {stream.session.finish_reason for stream in streams} == {"cancelled"}


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "8"])
def test_an_impossible_limit_is_refused_and_starts_no_thread(scheduler, value):
    before = threading.active_count()
    with pytest.raises(ConfigError, match=rf"max_waiting is {value!r}: give 1 or more, or None"):
        SchedulerManager(scheduler, max_waiting=value)
    assert threading.active_count() == before
