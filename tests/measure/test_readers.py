"""Four ways to read the streams of a run: the same tokens, all their times, every error, and no thread left behind."""

import asyncio
import threading
import time
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest

from rosecourse import EngineConfig, InferenceEngine, RequestError, RequestFailed
from rosecourse.engine.scheduler import OnlineScheduler
from rosecourse.errors import SchedulerClosed
from rosecourse.measure import workload
from rosecourse.measure.metrics import delay, reader_itl
from rosecourse.measure.readers import READERS
from rosecourse.measure.workload import Request, Workload, run_scheduler, run_streaming
from rosecourse.request.text import TextDecoder
from tests.support.failing import sick_model
from tests.support.managers import LIMIT, params, time_limit

WAYS = pytest.mark.parametrize("way", READERS)
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


@WAYS
@pytest.mark.parametrize("tokenize_workers", [0, 3])
def test_tokens_and_times_come_in_the_order_of_requests(model, way, tokenize_workers):
    """Prompts and completions of different lengths, more requests than the batch takes."""
    engine = InferenceEngine(model, EngineConfig(max_batch_size=4, prefix_cache=False))
    requests = [Request(prompt, params(3 + 2 * n), 0.004 * n) for n, prompt in enumerate(PROMPTS)]
    asked = Workload(tuple(requests), readers=way, tokenize_workers=tokenize_workers)
    run = run_streaming(engine, asked)
    assert run.completions == [engine.generate(one.prompt, one.params)[0].token_ids for one in requests]
    assert [times.submitted for times in run.times] == [run.start + one.arrival for one in requests]
    for times, one in zip(run.times, requests, strict=True):
        assert len(times.read) == one.params.max_new_tokens
        assert times.read == sorted(times.read)
        assert len(reader_itl(times)) == one.params.max_new_tokens - 1
        assert min(delay(times)) > 0
    assert engine.kv.num_available() == engine.kv.num_blocks


def let_read(patch, reads):
    """Readers have their tokens by `reads(streamed, token_id, finish_reason)`; streamed: as it was."""
    token = TextDecoder.token

    def read(self, token_id, finish_reason=None):
        return reads(partial(token, self), token_id, finish_reason)

    patch.setattr(TextDecoder, "token", read)


@WAYS
def test_all_but_one_read_while_requests_still_arrive(monkeypatch, engine, way):
    """The second request arrives once the first has been read, if it ever is: `sequential` waits for all requests."""
    last_read, gave, moments = threading.Event(), [], []

    def reads(streamed, *token):
        found = streamed(*token)
        if found.finish_reason is not None:
            last_read.set()
        return found

    def sleep_until(moment):
        moments.append(moment)
        if len(moments) == 2:
            gave.append(last_read.wait(0.1 if way == "sequential" else LIMIT))

    let_read(monkeypatch, reads)
    monkeypatch.setattr(workload, "_sleep_until", sleep_until)
    run = run_streaming(engine, Workload.of([(1, 2), (3, 4)], params(4), interval=0.001, readers=way))
    assert gave == [way != "sequential"]
    if way == "sequential":
        assert run.times[0].read[-1] <= run.times[1].read[0]  # one stream after the other


@WAYS
def test_requests_that_are_due_come_without_a_pause(monkeypatch, engine, way):
    """A sleep of no time would hand Python's lock to the thread that steps, after each request."""
    slept = []
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=slept.append)
    monkeypatch.setattr(workload, "time", clock)
    for interval, expected in ((0.0, []), (10.0, [10, 20, 30])):
        run_streaming(engine, Workload.of([(n, 2) for n in range(1, 5)], params(4), readers=way, interval=interval))
        assert [round(seconds, -1) for seconds in slept] == expected


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
    let_read(patch, raises_at(at, Broken, lambda streamed, *token: streamed(*token)))


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
    of_readers = "rosecourse-reader"
    patch.setattr(threading.Thread, "start", lambda self: (refused if of_readers in self.name else start)(self))


FAULTS = {f"reader {at}": (partial(break_reader, at=at), Broken) for at in (1, 6, 30)} | {
    "step": (break_step, Broken),
    "arrivals": (interrupt_arrivals, KeyboardInterrupt),
    "reading": (interrupt_reading, KeyboardInterrupt),
    "a request too long": (None, RequestError),
}
THREADS = {f"thread {at}": (partial(refuse_threads, at=at), RuntimeError) for at in (1, 3)}
CASES = [*product(READERS, FAULTS), *product(["threads"], THREADS), ("one", "thread 1")]


@pytest.mark.parametrize(("way", "fault"), CASES)
def test_what_goes_wrong_ends_the_run(monkeypatch, engine, way, fault):
    sabotage, error = (FAULTS | THREADS)[fault]
    third = (1,) * (2 if sabotage else 5000)
    asked = Workload.of([(1, 2), (2, 2), third, (4, 2), (5, 2)], params(40), 0.001, readers=way, tokenize_workers=2)
    with monkeypatch.context() as patch:
        if sabotage:
            sabotage(patch, way)
        with pytest.raises((error, SchedulerClosed)) as caught:
            run_streaming(engine, asked)
    assert isinstance(caught.value.__cause__ if fault == "step" else caught.value, error)
    assert_is_as_new(engine)


@WAYS
def test_a_request_of_nan_is_told_from_the_others(small_model, way):
    """Only the second request comes to position 9; the others are read to their ends."""
    engine = InferenceEngine(sick_model(small_model, 9), EngineConfig(block_size=4, max_batch_size=2))
    asked = Workload.of([(1, 2, 3), (4,) * 8, (6, 7), (8, 9)], params(5), interval=0.001, readers=way)
    with pytest.raises(RequestFailed, match=r"^request 1 gave 2 of 5 tokens \(error: its logits are NaN or infinite\)"):
        run_streaming(engine, asked)
    assert_is_as_new(engine)
