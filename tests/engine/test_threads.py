"""SchedulerManager among threads: closed by any of them, bounded, and under load. Every wait has a limit; no sleeps."""

import sys
import threading
from collections import Counter, deque
from functools import partial
from queue import SimpleQueue

import pytest

from rosecourse import OnlineScheduler, QueueFull, SchedulerClosed, SchedulerManager
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, managers, params
from tests.support.oracles import prompts_of
from tests.support.scheduling import make_engine, submit


@pytest.mark.parametrize("drains", [(True,) * 4, (True, False, True, False)])
def test_close_from_several_threads_ends_in_each(manage, drains):
    """Each of them returns when the thread has ended; who does not want to drain prevails."""
    before = set(threading.enumerate())
    manager = manage()
    streams = [manager.submit([1, 2, n], params(20)) for n in range(9)]
    together = threading.Barrier(len(drains), timeout=LIMIT)

    def close(drain):
        together.wait()
        manager.close(drain)
        assert not manager._stepper.thread.is_alive()

    in_threads(*[partial(close, drain) for drain in drains])
    assert set(threading.enumerate()) == before
    lengths = [len(ids(stream)) for stream in streams]
    assert lengths == [20] * 9 or not all(drains)
    assert {stream.session.finish_reason for stream in streams} <= {"length", "cancelled"}


def test_stepping_thread_may_close_and_ends_after_its_step(manage, scheduler):
    gate = Gate(scheduler.runner, "prefill")
    reserve = scheduler._reserve
    scheduler._reserve = lambda *arguments, **more: manager.close() or reserve(*arguments, **more)
    manager = manage()
    stream = manager.submit([1, 2, 3], LONG)
    gate.has_come()
    gate.open()
    assert len(ids(stream)) == 1
    assert stream.session.finish_reason == "cancelled"
    with pytest.raises(SchedulerClosed, match="the scheduler is closed: make a new SchedulerManager"):
        manager.submit([1])


def test_readers_are_answered_even_if_the_cleanup_fails(small_model):
    scheduler = OnlineScheduler(make_engine(small_model))
    launch = scheduler.runner.launch

    def frees_too_much(batch):
        launch(batch)
        if scheduler.stats.decode_steps == 3:
            scheduler.engine.kv.free(batch.tables[0])

    scheduler.runner.launch = frees_too_much
    with SchedulerManager(scheduler) as manager:
        streams = [manager.submit([1, 2, n], LONG) for n in range(3)]
        for stream in streams:
            with pytest.raises(SchedulerClosed):
                list(stream)


@pytest.mark.parametrize(("settings", "most"), [({"max_waiting": 3}, 3), ({}, 1024), ({"max_waiting": None}, None)])
def test_queue_is_bounded_by_all_that_wait(manage, scheduler, settings, most):
    """Held in the second prefill, with one place: of those that wait, two are in the scheduler's own queue."""
    scheduler.max_batch_size = 1
    gate = Gate(scheduler.runner, "launch", 2)
    first = Gate(scheduler.runner, "prefill")
    manager = manage(**settings)
    streams = [manager.submit([1, 2, 3], LONG)]
    first.has_come()
    streams += [manager.submit([1, 2, n], LONG) for n in range(2)]
    first.open()
    gate.has_come()
    assert len(scheduler.waiting) == 2
    streams += [manager.submit([1, 2], LONG) for _ in range((most or 1100) - 2)]
    if most is not None:
        with pytest.raises(QueueFull, match=f"{most} requests wait already"):
            manager.submit([1, 2], LONG)
    closer = threading.Thread(target=manager.close)
    closer.start()
    gate.open()
    closer.join(LIMIT)
    assert {stream.session.finish_reason for stream in streams} == {"cancelled"}


def test_submitters_readers_and_cancellers_at_once(small_model):
    """Hazard 22: 600 requests from four threads, over a pool that is too small for the batch, with a short queue.

    Half of them are cancelled by another thread, some after their first token. All are answered with the right tokens,
    or the first of them; no block is missing and no thread is left.
    """
    prompts = prompts_of([5] * 8, 211)
    wanted = [params(new) for new in (3, 9) * 4]  # the long ones may outgrow what admission leaves
    expected = [g.token_ids for g in make_engine(small_model).generate(prompts, wanted)]
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=12, num_blocks=20, prefix_cache=False))
    to_cancel, counts = SimpleQueue(), Counter()

    def patiently(number, mine):
        """Submit; while the queue is full read streams of one's own, which makes room."""
        while True:
            try:
                return number, manager.submit(prompts[number], wanted[number])
            except QueueFull:
                counts["refused"] += 1
                if mine:
                    read(mine.popleft())

    def submit(offset):
        mine = deque()
        for n in range(150):
            (mine.append, to_cancel.put)[n % 2](patiently((n // 2 + offset) % len(prompts), mine))
        for one in mine:
            read(one)
        to_cancel.put(None)

    def read(one):
        number, stream = one
        assert ids(stream) == expected[number]
        counts["read"] += 1

    def cancel():
        for number, stream in (one for _ in range(2) for one in iter(partial(to_cancel.get, timeout=LIMIT), None)):
            got = [next(stream).token_id] if number % 3 else []
            stream.cancel()
            got += ids(stream)
            assert got == expected[number][: len(got)]
            assert stream.session.finish_reason == ("length" if got == expected[number] else "cancelled")
            counts[stream.session.finish_reason] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with managers(scheduler) as manage:
            manager = manage(max_waiting=16)
            in_threads(*[partial(submit, n) for n in range(4)], cancel, cancel)
            manager.close(drain=True)
    finally:
        sys.setswitchinterval(interval)
    assert counts["read"] == counts["cancelled"] + counts["length"] == 300
    assert counts["refused"]
    assert counts["cancelled"]
    assert not manager._stepper.mailboxes


def test_a_session_that_nobody_reads_keeps_no_token_from_others(scheduler, manage):
    """It was submitted before there was a manager."""
    (unread,) = submit(scheduler, [3], 6)
    manager = manage()
    streams = [manager.submit(prompt, params(6)) for prompt in prompts_of([4, 5], 211)]
    expected = [len(ids(stream)) for stream in streams]
    assert expected == [6, 6]
    manager.close(drain=True)
    assert len(unread.completion_ids) == 6
