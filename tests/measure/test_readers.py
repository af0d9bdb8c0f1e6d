"""Four ways to read the streams of a run: the same tokens, all their times, every error, and no thread left behind."""

import asyncio
import threading
import time
from functools import partial
from itertools import product
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
def test_tokens_and_times_come_in_the_order_of_the_workload(model, way, tokenize_workers):
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
@pytest.mark.parametrize("rung", [LESSONS[0], LESSONS[-1]], ids=lambda rung: rung.number)
def test_every_rung_gives_the_same_tokens_to_all_readers(small_model, way, rung):
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


# -- what goes wrong ----------------------------------------------------------------------------------------------


class Broken(Exception):
    """What a broken reader or step raises."""


def raises_at(at, error, work):
    """`work`, which raises `error` at its call number `at`."""
    calls = []

    def counted(*args, **settings):
        calls.append(args)
        if len(calls) == at:
            raise error
        return work(*args, **settings)

    return counted


def break_reader(patch, way, at):
    let_read(patch, raises_at(at, Broken, lambda reading, streamed, *token: streamed(*token)))


def break_step(patch, way):
    patch.setattr(OnlineScheduler, "step", raises_at(5, Broken, OnlineScheduler.step))


def interrupt_arrivals(patch, way):
    patch.setattr(workload, "_sleep_until", raises_at(3, KeyboardInterrupt, lambda moment: None))


def interrupt_reading(patch, way):
    """What nobody reads is cancelled, not computed to its end."""
    reads = READERS[way]

    def interrupted(manager, threads, arrive):
        return reads(manager, threads, lambda submit: raises_at(1, KeyboardInterrupt, None)(arrive(submit)))

    patch.setitem(workload.READERS, way, interrupted)


def refuse_threads(patch, way, at):
    start = threading.Thread.start
    refused = raises_at(at, RuntimeError("can't start new thread"), start)
    patch.setattr(threading.Thread, "start", lambda self: (refused if of_readers(self) else start)(self))


FAULTS = {f"reader {at}": (partial(break_reader, at=at), Broken) for at in (1, 6, 30)} | {
    "step": (break_step, Broken),
    "arrivals": (interrupt_arrivals, KeyboardInterrupt),
    "reading": (interrupt_reading, KeyboardInterrupt),
}
THREADS = {f"thread {at}": (partial(refuse_threads, at=at), RuntimeError) for at in (1, 3)}
CASES = [*product(READERS, FAULTS), *product(["threads"], THREADS), ("one", "thread 1")]


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_what_goes_wrong_ends_the_run(monkeypatch, engine, way, fault):
    sabotage, error = (FAULTS | THREADS)[fault]
    asked = Workload.of([(n, 2) for n in range(1, 7)], params(40), interval=0.001, readers=way, tokenize_workers=2)
    with monkeypatch.context() as patch:
        sabotage(patch, way)
        with pytest.raises((error, SchedulerClosed)) as caught:
            run_streaming(engine, asked)
    assert isinstance(caught.value.__cause__ if fault == "step" else caught.value, error)
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
def test_a_request_whose_logits_are_nan_is_told_from_the_others(small_model, way):
    """Only the second request comes to position 9; the others are read to their ends."""
    engine = InferenceEngine(sick_model(small_model, 9), EngineConfig(block_size=4, max_batch_size=2))
    asked = Workload.of([(1, 2, 3), (4,) * 8, (6, 7), (8, 9)], params(5), interval=0.001, readers=way)
    with pytest.raises(RequestFailed, match=r"^request 1 gave 2 of 5 tokens \(error: its logits are NaN or infinite\)"):
        run_streaming(engine, asked)
    assert_is_as_new(engine)
