"""The bounded queue of SchedulerManager, and readers that are slow."""

import threading

import pytest

from rosecourse import ConfigError, QueueFull, SchedulerManager
from rosecourse.measure.workload import Workload, run_streaming
from tests.support.managers import LIMIT, LONG, Gate, ids, params
from tests.support.scheduling import make_engine


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


@pytest.mark.parametrize("workers", [0, 3])
def test_a_benchmark_may_send_more_at_once_than_the_queue_holds(small_model, workers):
    engine = make_engine(small_model, max_batch_size=64)
    workload = Workload.of(((1, 2, 3),) * 1100, params(1), tokenize_workers=workers)
    assert run_streaming(engine, workload).num_tokens == 1100
