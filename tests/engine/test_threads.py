"""SchedulerManager among threads: Hazard 22, and Hazard 2 from another thread. Every wait has a limit; no sleeps."""

import sys
import threading
from collections import deque
from queue import SimpleQueue

import pytest

from rosecourse import LogitsError, OnlineScheduler, QueueFull, SchedulerClosed
from tests.support.failing import spoil
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, managers, params
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine

CALLS = ["reserve", "prefill", "can_append", "launch", "begin", "land"]


# -- cancelled in every state -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "call", "tokens", "reason"),
    [
        ("prefill", 1, 0, "cancelled"),  # queued: another one is being prefilled
        ("prefill", 2, 1, "cancelled"),  # admitted, and not computed yet
        ("launch", 3, 3, "cancelled"),  # decoding
        ("launch", 5, 5, "length"),  # in the step that gives its last token
    ],
)
def test_cancel_in_every_state(manage, scheduler, small_pair, name, call, tokens, reason):
    """Hazard 2: the other thread stands still where it hurts, and the cancellation comes then, twice.

    The one that is cancelled comes while the first is prefilled, so that its own prefill is the second, beside the
    first decode step, and its own decode steps are those from the second to the fifth.
    """
    hf, _ = small_pair
    prompts = prompts_of([4, 6], 211)
    expected = hf_greedy(hf, prompts, 9)
    first_prefill = Gate(scheduler.runner, "prefill")
    gate = first_prefill if (name, call) == ("prefill", 1) else Gate(scheduler.runner, name, call)
    manager = manage()
    neighbour = manager.submit(prompts[0], params(9))
    first_prefill.has_come()
    stream = manager.submit(prompts[1], params(5))
    if gate is not first_prefill:
        first_prefill.open()
        gate.has_come()
    stream.cancel()
    stream.cancel()
    gate.open()
    assert ids(stream) == expected[1][:tokens]
    assert stream.session.finish_reason == reason
    assert ids(neighbour) == expected[0]
    stream.cancel()  # after its end
    assert len(ids(manager.submit(prompts[0], params(2)))) == 2


def test_cancel_after_close_does_nothing_and_is_not_kept(manage):
    manager = manage()
    streams = [manager.submit([1, 2, n], params(3)) for n in range(3)]
    manager.close(drain=True)
    for stream in streams:
        stream.cancel()
        assert (len(ids(stream)), stream.session.finish_reason) == (3, "length")
    assert not manager._stepper.cancelled


# -- exceptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CALLS, "admission"])
def test_an_exception_reaches_every_waiter_once_the_blocks_are_back(manage, scheduler, name):
    """Five readers wait, some for requests that run. The first of them to hear of it finds all blocks free."""
    kv = scheduler.engine.kv
    started = threading.Barrier(6, timeout=LIMIT)
    gate = Gate(scheduler.runner, "launch", 3)
    manager = manage()
    streams = [manager.submit([1, 2, n], LONG) for n in range(6)]
    heard = []

    def read(stream):
        started.wait()
        with pytest.raises(SchedulerClosed, match="the scheduler stopped: ZeroDivisionError: planted"):
            ids(stream)
        heard.append(kv.num_available())

    def fail():
        def broken(*_):
            raise ZeroDivisionError("planted")

        gate.has_come()
        started.wait()
        owners = {"admission": scheduler, "can_append": kv}
        setattr(owners.get(name, scheduler.runner), name, broken)
        if name in ("reserve", "prefill", "begin", "admission"):  # which come when a place is free
            streams[0].cancel()
        gate.open()

    in_threads(*[lambda s=stream: read(s) for stream in streams[1:]], fail)
    assert heard == [kv.num_blocks] * 5
    manager._stepper.thread.join(LIMIT)
    assert not manager._stepper.thread.is_alive()
    with pytest.raises(SchedulerClosed) as caught:
        manager.submit([1])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for stream in streams[1:]:  # whoever asks again hears it again
        with pytest.raises(SchedulerClosed):
            next(stream)


def test_nan_ends_one_stream_and_not_its_neighbours(manage, scheduler, small_pair):
    hf, _ = small_pair
    prompts = prompts_of([4, 6, 5], 211)
    spoil(scheduler.engine, lambda session: session.prompt_ids == prompts[1] and len(session.completion_ids) == 3)
    manager = manage()
    streams = [manager.submit(prompt, params(8)) for prompt in prompts]
    expected = hf_greedy(hf, prompts, 8)
    assert [next(streams[1]).token_id for _ in range(3)] == expected[1][:3]
    for _ in range(2):
        with pytest.raises(LogitsError, match="NaN"):
            next(streams[1])
    assert streams[1].session.finish_reason == "error"
    assert [ids(streams[0]), ids(streams[2])] == [expected[0], expected[2]]
    assert len(ids(manager.submit(prompts[0], params(4)))) == 4


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


# -- everything at once -------------------------------------------------------------------------------------------


def test_submitters_readers_and_cancellers_at_once(small_model):
    """Hazard 22: 2,400 requests from four threads, over a pool that is too small for the batch, with a short queue.

    A third is read by its submitter, a third by other threads, the rest is cancelled by yet others or dropped. All are
    answered with the right tokens, or the first of them; no block is missing and no thread is left.
    """
    prompts = prompts_of([5] * 8, 211)
    wanted = [params(new) for new in (3, 9) * 4]  # the long ones may outgrow what admission leaves
    each = 600
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
