"""Four ways to read the streams of a run: the same tokens, all their times, every error, and no thread left behind."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    RequestError,
    RequestFailed,
)
from rosecourse.engine.scheduler import OnlineScheduler
from rosecourse.engine.streaming import Reading
from rosecourse.errors import SchedulerClosed
from rosecourse.lessons import LESSONS
from rosecourse.measure import workload
from rosecourse.measure.metrics import delay, reader_itl
from rosecourse.measure.readers import READERS
from rosecourse.measure.workload import Request, Workload, run_scheduler, run_streaming
from tests.support.failing import sick_model
from tests.support.managers import LIMIT, params, time_limit

WAYS = pytest.mark.parametrize("way", READERS)
AT_ONCE = [way for way in READERS if way != "sequential"]  # those that read while requests still arrive
PROMPTS = ["Hello", "Emma was", "It is a truth", "Mr. Knightley", "A", "There was no", "She had", "Hello", "Emma was"]


@pytest.fixture
def engine(small_model):
    return InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=3, prefix_cache=False))


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    """No thread and no open event loop, whatever a test has done."""
    before, loops, new_event_loop = set(threading.enumerate()), [], asyncio.new_event_loop

    def makes():
        loops.append(new_event_loop())
        return loops[-1]

    monkeypatch.setattr(asyncio, "new_event_loop", makes)
    with time_limit():
        yield
    assert set(threading.enumerate()) <= before
    assert all(loop.is_closed() for loop in loops)


def assert_is_as_new(engine):
    """All blocks are back, and the engine serves once more."""
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks
    assert run_scheduler(engine, Workload.of([(1, 2)], params(3))).num_tokens == 3


# -- what is read -------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("tokenize_workers", [0, 3])
def test_requests_that_arrive_over_time_have_their_tokens_and_times_in_the_order_of_the_workload(
    model, way, tokenize_workers
):
    """Prompts and completions of different lengths, more requests than the batch takes."""
    engine = InferenceEngine(model, EngineConfig(max_batch_size=4, prefix_cache=False))
    requests = [Request(prompt, params(3 + 2 * n), 0.004 * n) for n, prompt in enumerate(PROMPTS)]
    asked = Workload(tuple(requests), readers=way, tokenize_workers=tokenize_workers)
    run = run_streaming(engine, asked)
    assert run.completions == [engine.generate(one.prompt, one.params)[0].token_ids for one in requests]
    arrivals = [run.start + one.arrival for one in requests]
    assert [times.submitted for times in run.times] == arrivals
    for times, one in zip(run.times, requests, strict=True):
        assert len(times.read) == one.params.max_new_tokens
        assert times.read == sorted(times.read)
        assert len(reader_itl(times)) == one.params.max_new_tokens - 1
        assert min(delay(times)) > 0
    assert engine.kv.num_available() == engine.kv.num_blocks


@WAYS
@pytest.mark.parametrize("number", ["035", "061", LESSONS[-1].number])
def test_every_rung_gives_the_same_tokens_to_all_readers(small_model, way, number):
    rung = next(rung for rung in LESSONS if rung.number == number)
    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=3), rung.after)
    prompts = [(n, 5, 7) for n in range(1, 8)]
    run = run_streaming(engine, Workload.of(prompts, params(9), readers=way))
    assert run.completions == run_scheduler(engine, Workload.of(prompts, params(9))).completions


def hold_the_second_arrival(monkeypatch, until):
    """The second request arrives once `until` has returned; returns a list that tells what `until` gave."""
    gave, moments = [], []

    def sleep_until(moment):
        moments.append(moment)
        if len(moments) == 2:
            gave.append(until())

    monkeypatch.setattr(workload, "_sleep_until", sleep_until)
    return gave


def let_read(patch, reads):
    """Readers have their tokens by `reads(reading, streamed, token_id, finish_reason)`; streamed: as it was."""
    begins = Reading.__init__

    def begin(self, session, pieces):
        begins(self, session, pieces)
        streamed = self.streamed
        self.streamed = lambda token_id, finish_reason=None: reads(self, streamed, token_id, finish_reason)

    patch.setattr(Reading, "__init__", begin)


@pytest.fixture
def last_read(monkeypatch):
    """An event: a reader has had the last token of a request."""
    event = threading.Event()

    def reads(reading, streamed, *token):
        found = streamed(*token)
        if found.finish_reason is not None:
            event.set()
        return found

    let_read(monkeypatch, reads)
    return event


@pytest.mark.parametrize("way", AT_ONCE)
def test_tokens_are_read_while_requests_still_arrive(monkeypatch, engine, last_read, way):
    gave = hold_the_second_arrival(monkeypatch, lambda: last_read.wait(LIMIT))
    run_streaming(engine, Workload.of([(1, 2), (3, 4)], params(4), interval=0.001, readers=way))
    assert gave == [True]


def test_the_sequential_reader_begins_once_all_requests_are_there(monkeypatch, engine, last_read):
    gave = hold_the_second_arrival(monkeypatch, lambda: last_read.wait(0.1))
    run = run_streaming(engine, Workload.of([(1, 2), (3, 4)], params(4), interval=0.001))
    assert gave == [False]
    assert run.times[0].read[-1] <= run.times[1].read[0]  # one stream after the other


def of_readers(thread):
    return thread.name.startswith("rosecourse-reader")


def test_threads_are_one_for_each_stream_and_the_others_have_one_for_all(monkeypatch, engine):
    started, start = [], threading.Thread.start

    def starts(self):
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", starts)
    counts = {}
    for way in READERS:
        started.clear()
        run_streaming(engine, Workload.of([(n, 2) for n in range(1, 6)], params(30), readers=way))
        counts[way] = sum(map(of_readers, started))
    several = counts.pop("threads")  # one that has read its stream may take another
    assert 1 < several <= 5
    assert counts == {"sequential": 0, "one": 1, "asyncio": 1}


def test_who_does_not_stream_has_no_reader(engine):
    run = run_scheduler(engine, Workload.of([(1, 2), (3, 4)], params(4), readers="one"))
    assert [times.read for times in run.times] == [[], []]


# -- what goes wrong ----------------------------------------------------------------------------------------------


class Broken(Exception):
    """What a broken reader raises."""


@WAYS
@pytest.mark.parametrize("at", [1, 6, 30])
def test_what_a_reader_raises_comes_out(monkeypatch, engine, way, at):
    calls = []

    def breaks(reading, streamed, *token):
        calls.append(token)
        if len(calls) == at:
            raise Broken(f"item {at}")
        return streamed(*token)

    asked = Workload.of([(n, 2) for n in range(1, 7)], params(8), interval=0.001, readers=way, tokenize_workers=2)
    with monkeypatch.context() as patch:
        let_read(patch, breaks)
        with pytest.raises(Broken, match=f"^item {at}$"):
            run_streaming(engine, asked)
    assert_is_as_new(engine)


@WAYS
def test_a_step_that_fails_ends_the_run(monkeypatch, engine, way):
    steps, step = [], OnlineScheduler.step

    def breaks(self):
        steps.append(self)
        if len(steps) == 5:
            raise Broken("step 5")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineScheduler, "step", breaks)
        with pytest.raises(SchedulerClosed) as caught:
            run_streaming(engine, Workload.of([(n, 2) for n in range(1, 7)], params(8), readers=way))
    assert isinstance(caught.value.__cause__, Broken)  # whether it meets a reader or a submission that comes after it
    assert_is_as_new(engine)


@WAYS
@pytest.mark.parametrize("tokenize_workers", [0, 2])
def test_a_request_that_can_never_be_served_ends_the_run(engine, way, tokenize_workers):
    requests = [Request((1, 2), params(30)), Request((1,) * 5000, params(4)), Request((3, 4), params(30))]
    with pytest.raises(RequestError):
        run_streaming(engine, Workload(tuple(requests), readers=way, tokenize_workers=tokenize_workers))
    assert_is_as_new(engine)


@WAYS
def test_requests_that_are_due_come_without_a_pause(monkeypatch, engine, way):
    """A sleep of no time would hand Python's lock to the thread that steps, after each request."""
    slept = []
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=slept.append)
    monkeypatch.setattr(workload, "time", clock)
    prompts = [(n, 2) for n in range(1, 7)]
    run_streaming(engine, Workload.of(prompts, params(4), readers=way))
    assert slept == []
    run_streaming(engine, Workload.of(prompts, params(4), readers=way, interval=10.0))
    assert [round(seconds, -1) for seconds in slept] == [10, 20, 30, 40, 50]


@WAYS
def test_an_interrupt_while_requests_arrive_ends_the_run(monkeypatch, engine, way):
    moments = []

    def sleep_until(moment):
        moments.append(moment)
        if len(moments) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workload, "_sleep_until", sleep_until)
        with pytest.raises(KeyboardInterrupt):
            run_streaming(engine, Workload.of([(n, 2) for n in range(1, 7)], params(40), readers=way))
    assert len(moments) == 3
    assert_is_as_new(engine)


@WAYS
def test_an_interrupt_while_streams_are_read_ends_the_run(monkeypatch, engine, way):
    """What nobody reads is cancelled, not computed to its end."""

    def interrupted(manager, threads, arrive):
        def and_then(submit):
            arrive(submit)
            raise KeyboardInterrupt

        return READERS[way](manager, threads, and_then)

    monkeypatch.setitem(workload.READERS, "interrupted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_streaming(engine, Workload.of([(n, 2) for n in range(1, 7)], params(90), readers="interrupted"))
    assert_is_as_new(engine)


@pytest.mark.parametrize(("way", "at"), [("threads", 1), ("threads", 3), ("one", 1)])
def test_a_thread_that_cannot_start_ends_the_run(monkeypatch, engine, way, at):
    started, start = [], threading.Thread.start

    def starts(self):
        if of_readers(self):
            started.append(self)
            if len(started) == at:
                raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", starts)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            run_streaming(engine, Workload.of([(n, 2) for n in range(1, 7)], params(40), readers=way))
    assert_is_as_new(engine)


@WAYS
def test_a_request_whose_logits_are_nan_is_told_from_the_others(small_model, way):
    """Only the second request comes to position 9; the others are read to their ends."""
    engine = InferenceEngine(sick_model(small_model, 9), EngineConfig(block_size=4, max_batch_size=2))
    asked = Workload.of([(1, 2, 3), (4,) * 8, (6, 7), (8, 9)], params(5), interval=0.001, readers=way)
    with pytest.raises(RequestFailed, match=r"^request 1 gave 2 of 5 tokens \(error: its logits are NaN or infinite\)"):
        run_streaming(engine, asked)
    assert_is_as_new(engine)
