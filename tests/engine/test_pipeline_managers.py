"""One step behind under a `SchedulerManager`: each reader gets each token once, and no end leaves a step in flight."""

import gc

import pytest

from rosecourse import OnlineScheduler, SchedulerClosed
from tests.support.managers import Gate, ids, in_threads, managers
from tests.support.pipelines import PROMPTS, SickModel, alone, asks, assert_empty, make_engine, one_behind

EXPECTED = [alone(tuple(prompt), params)[0] for prompt, params in zip(PROMPTS, asks(), strict=True)]


@pytest.fixture(params=[None, 7, 1], ids=["roomy", "short", "alone"])
def managed(request):
    """Makes a manager over a new engine: with blocks for all, with too few, or with a batch of one."""
    open_now = []

    def make(parts, **config):
        if request.param == 1:
            config["max_batch_size"] = 1
        elif request.param:
            config["num_blocks"] = request.param
        scheduler = OnlineScheduler(make_engine(parts, **config))
        open_now.append((managers(scheduler), scheduler))
        return open_now[-1][0].__enter__()()

    yield make
    for context, scheduler in open_now:
        context.__exit__(None, None, None)
        assert_empty(scheduler.engine)


@pytest.fixture
def manage():
    """The same with blocks for all; the manager may be closed by the test."""
    open_now = []

    def make(parts, **settings):
        scheduler = OnlineScheduler(make_engine(parts, **settings))
        open_now.append((managers(scheduler), scheduler))
        return open_now[-1][0].__enter__()()

    yield make
    for context, scheduler in open_now:
        context.__exit__(None, None, None)
        assert_empty(scheduler.engine)


def submit_all(manager):
    return [manager.submit(prompt, params) for prompt, params in zip(PROMPTS, asks(), strict=True)]


def read_all(stream):
    """The tokens of a stream, and what it raised in the end."""
    read = []
    try:
        for token in stream:
            read.append(token.token_id)
    except SchedulerClosed as error:
        return read, error
    return read, None


@one_behind
def test_each_reader_gets_each_token_once_and_in_order(managed, parts):
    streams = submit_all(managed(parts))
    read = [[] for _ in streams]
    in_threads(*(lambda s=stream, r=mine: r.extend(s) for stream, mine in zip(streams, read, strict=True)))
    assert [[token.token_id for token in mine] for mine in read] == EXPECTED
    for mine in read:
        assert [token.finish_reason for token in mine] == [None] * (len(mine) - 1) + ["length"]


@one_behind
def test_a_reader_that_stops_reading_holds_up_nobody(managed, parts):
    streams = submit_all(managed(parts))
    first = next(streams[2])
    assert [ids(stream) for number, stream in enumerate(streams) if number != 2] == EXPECTED[:2] + EXPECTED[3:]
    assert [first.token_id, *ids(streams[2])] == EXPECTED[2]


@one_behind
@pytest.mark.parametrize("call", ["launch", "land", "prefill"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_close_in_the_middle(manage, parts, call, n):
    """While the thread is held at a call: what was read is a beginning, and every reader hears of the end."""
    manager = manage(parts, max_batch_size=2)
    engine = manager.scheduler.engine
    gate = Gate(engine.runner, call, n)
    streams = submit_all(manager)
    gate.has_come()
    if call != "prefill":
        assert engine.num_in_flight == (2 if call == "land" else 1)
    manager._stepper.end()
    gate.open()
    manager.close()
    assert_empty(engine)
    told = [ids(stream) for stream in streams]
    assert told == [stream.session.completion_ids for stream in streams]
    assert told == [tokens[: len(mine)] for mine, tokens in zip(told, EXPECTED, strict=True)]
    assert told != EXPECTED


@one_behind
def test_close_lets_requests_run_to_their_end(manage, parts):
    manager = manage(parts)
    streams = submit_all(manager)
    manager.close(drain=True)
    assert_empty(manager.scheduler.engine)
    assert [ids(stream) for stream in streams] == EXPECTED


@one_behind
@pytest.mark.parametrize("n", range(1, 8))
def test_cancel_while_a_step_is_in_flight(manage, parts, n):
    manager = manage(parts)
    gate = Gate(manager.scheduler.runner, "launch", n)
    streams = submit_all(manager)
    gate.has_come()
    streams[2].cancel()
    gate.open()
    told = [ids(stream) for stream in streams]
    assert told[:2] + told[3:] == EXPECTED[:2] + EXPECTED[3:]
    assert told[2] == EXPECTED[2][: len(told[2])]
    assert streams[2].session.completion_ids == told[2]


@one_behind
def test_a_stream_that_nobody_holds(manage, parts):
    """It is cancelled in the middle; the others go on."""
    manager = manage(parts)
    gate = Gate(manager.scheduler.runner, "launch", 3)
    streams = submit_all(manager)
    gate.has_come()
    session = streams.pop(2).session
    gc.collect()
    gate.open()
    assert [ids(stream) for stream in streams] == EXPECTED[:2] + EXPECTED[3:]
    manager.close()
    assert session.finish_reason == "cancelled"
    assert session.completion_ids == EXPECTED[2][: len(session.completion_ids)]


@one_behind
@pytest.mark.parametrize("call", ["launch", "land"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_fault_ends_all_and_leaves_nothing_in_flight(manage, parts, call, n):
    manager = manage(parts)
    engine = manager.scheduler.engine
    calls, real = [], getattr(engine.runner, call)

    def fails(*arguments):
        calls.append(call)
        if len(calls) == n:
            raise OSError("the device is gone")
        return real(*arguments)

    setattr(engine.runner, call, fails)
    gate = Gate(engine.runner, "prefill")
    streams = submit_all(manager)
    gate.open()
    ends = []
    for stream, expected in zip(streams, EXPECTED, strict=True):
        read, error = read_all(stream)
        ends.append(error)
        assert read == expected[: len(read)]
        assert (error is None) == (read == expected)
    assert sum("the device is gone" in str(error) for error in ends) >= 6
    manager.close()
    assert_empty(engine)
    with pytest.raises(SchedulerClosed):
        manager.submit(PROMPTS[0], asks()[0])


@one_behind
def test_logits_of_nan_end_one_stream(manage, parts):
    model = SickModel()
    prompt = PROMPTS[2]
    model.sick.add((EXPECTED[2][3], len(prompt) + 3))
    scheduler = OnlineScheduler(make_engine(parts, model))
    with managers(scheduler) as make:
        streams = submit_all(make())
        assert [ids(stream) for number, stream in enumerate(streams) if number != 2] == EXPECTED[:2] + EXPECTED[3:]
        assert [next(streams[2]).token_id for _ in range(4)] == EXPECTED[2][:4]
        with pytest.raises(Exception, match="NaN"):
            next(streams[2])
    assert_empty(scheduler.engine)
