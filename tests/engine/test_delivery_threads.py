"""Readers in real threads, of which a step wakes one: each gets each token once, and nobody sleeps for ever."""

import threading
from functools import partial

import pytest

from rosecourse import BEST, LogitsError, OnlineScheduler, SchedulerClosed
from rosecourse.decode.delivery import Delivery
from rosecourse.engine.streaming import TokenReader
from tests.support.failing import spoil
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, managers, params
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine

READERS = 12
PROMPTS = prompts_of([3, 8, 1, 12, 5, 4] * 2, 211)


@pytest.fixture(params=[1e-9, 1000.0], ids=["one a step", "1000 a second"])
def scheduler(small_model, request):
    parts = BEST.with_(delivery=partial(Delivery, wakes_per_second=request.param))
    return OnlineScheduler(make_engine(small_model, parts, max_batch_size=READERS, prefix_cache=False))


@pytest.fixture
def manage(scheduler):
    with managers(scheduler) as make:
        yield make


@pytest.fixture(scope="module")
def expected(small_pair):
    """20 tokens of each prompt."""
    return hf_greedy(small_pair[0], PROMPTS, 20)


def test_each_reader_gets_each_token_once_in_order(manage, expected):
    manager, got = manage(), {}

    def read(number):
        got[number] = ids(manager.submit(PROMPTS[number], params(20)))

    in_threads(*[partial(read, number) for number in range(READERS)])
    assert [got[number] for number in range(READERS)] == expected


def test_everybody_is_woken_when_the_work_ends(manage, expected):
    """All requests end in one step, whose hand-over wakes one reader; and again, after the thread has slept."""
    manager = manage()
    for _ in range(5):
        streams = [manager.submit(prompt, params(2)) for prompt in PROMPTS]
        in_threads(*[partial(ids, stream) for stream in streams])
        assert [stream.session.completion_ids for stream in streams] == [tokens[:2] for tokens in expected]


def test_every_token_has_two_times(manage):
    """The host's and its reader's, which is not before it; as many of the one as of the other."""
    manager = manage()
    streams = [manager.submit(prompt, params(20)) for prompt in PROMPTS]
    in_threads(*[partial(ids, stream) for stream in streams])
    for times in (stream.session.times for stream in streams):
        assert len(times.tokens) == len(times.read) == 20
        assert times.read == sorted(times.read)
        assert all(host <= its for host, its in zip(times.tokens, times.read, strict=True))


def test_who_does_not_read_has_no_times(manage):
    manager = manage()
    stream = manager.submit(PROMPTS[0], params(20))
    manager.close(drain=True)
    assert (len(stream.session.times.tokens), stream.session.times.read) == (20, [])
    next(stream)
    assert len(stream.session.times.read) == 1


def test_several_readers_of_one_stream(manage, expected):
    """Whoever is woken takes what is there; the end is for all of them."""
    manager = manage()
    streams = [manager.submit(PROMPTS[n], params(20)) for n in range(3)]
    got = [[] for _ in streams]

    def read(number):
        for token in streams[number]:
            got[number].append(token.token_id)

    in_threads(*[partial(read, number % 3) for number in range(12)])
    assert [sorted(tokens) for tokens in got] == [sorted(tokens) for tokens in expected[:3]]


def test_a_reader_that_stops_reading_holds_up_nobody(manage, expected):
    """It stops after a token; all others come to their ends, and its own tokens wait for it."""
    manager = manage()
    streams = [manager.submit(prompt, params(20)) for prompt in PROMPTS]
    got = {}

    def read(number):
        got[number] = [next(streams[number]).token_id]
        if number:
            got[number] += ids(streams[number])

    in_threads(*[partial(read, number) for number in range(READERS)])
    assert [got[number] for number in range(1, READERS)] == expected[1:]
    assert got[0] + ids(streams[0]) == expected[0]


# -- ends -----------------------------------------------------------------------------------------------------------


def test_readers_of_cancelled_requests_end(manage, scheduler, expected):
    """Cancelled by another thread in the middle of a step, all but one; one at a time; and the last one of all."""
    gate = Gate(scheduler.runner, "launch", 6)
    manager = manage()
    streams = [manager.submit(prompt, params(80)) for prompt in PROMPTS]
    got = {}

    def read(number):
        got[number] = ids(streams[number])

    def cancel():
        gate.has_come()
        for stream in streams[1:]:
            stream.cancel()
        gate.open()

    in_threads(*[partial(read, number) for number in range(READERS)], cancel)
    for number, stream in enumerate(streams):
        assert got[number] == stream.session.completion_ids
        assert got[number][:20] == expected[number][: len(got[number])]
        assert stream.session.finish_reason == ("cancelled" if number else "length")
    last = manager.submit(PROMPTS[0], LONG)
    in_threads(lambda: ids(last), last.cancel)


@pytest.mark.parametrize("drain", [False, True])
def test_readers_end_when_the_manager_closes(manage, scheduler, drain):
    gate = Gate(scheduler.runner, "launch", 6)
    manager = manage()
    streams = [manager.submit(prompt, params(20)) for prompt in PROMPTS]
    got = {}

    def read(number):
        got[number] = ids(streams[number])

    def close():
        gate.has_come()
        opener = threading.Timer(0.01, gate.open)
        opener.start()
        manager.close(drain)
        opener.join(LIMIT)

    in_threads(*[partial(read, number) for number in range(READERS)], close)
    for number, stream in enumerate(streams):
        assert got[number] == stream.session.completion_ids
    assert [len(tokens) == 20 for tokens in got.values()] == [drain] * READERS


@pytest.mark.parametrize("name", ["launch", "land", "hand_over"])
def test_readers_hear_of_a_stepping_thread_that_fails(manage, scheduler, name):
    """Of a delivery that fails, too, in the step with the last token of the first request."""
    owner = scheduler.engine.delivery if name == "hand_over" else scheduler.runner
    gate = Gate(scheduler.runner, "launch", 6)
    manager = manage()
    streams = [manager.submit(prompt, params(7 + number)) for number, prompt in enumerate(PROMPTS)]
    heard, got = [], {}

    def read(number):
        got[number] = []
        try:
            for token in streams[number]:
                got[number].append(token.token_id)
        except SchedulerClosed as error:
            heard.append((number, str(error)))

    def broken(*_):
        raise ZeroDivisionError("planted")

    def fail():
        gate.has_come()
        setattr(owner, name, broken)
        gate.open()
        manager._stepper.thread.join(LIMIT)

    in_threads(*[partial(read, number) for number in range(READERS)], fail)
    made = [stream.session.completion_ids for stream in streams]
    assert all(got[number] == made[number][: len(got[number])] for number in range(READERS))
    assert {error for _, error in heard} == {"the scheduler stopped: ZeroDivisionError: planted"}
    assert sorted(number for number, _ in heard) == list(range(name == "launch", READERS))
    assert name != "launch" or got[0] == made[0]
    with pytest.raises(SchedulerClosed):
        manager.submit([1])


def test_nan_wakes_its_reader_too(manage, scheduler, expected):
    spoil(scheduler.engine, lambda session: session.prompt_ids == PROMPTS[1] and len(session.completion_ids) == 3)
    manager = manage()
    streams = [manager.submit(prompt, params(20)) for prompt in PROMPTS]
    got, errors = {}, []

    def read(number):
        got[number] = []
        try:
            for token in streams[number]:
                got[number].append(token.token_id)
        except LogitsError as error:
            errors.append((number, str(error)))

    in_threads(*[partial(read, number) for number in range(READERS)])
    assert [number for number, _ in errors] == [1]
    assert [got[number] for number in range(READERS)] == [expected[0], expected[1][:3], *expected[2:]]


def test_one_reader_beside_threads(manage, expected):
    """It sleeps and is woken like one of them."""
    manager = manage()
    reader = TokenReader(manager)
    sessions = [reader.submit(prompt, params(20)) for prompt in PROMPTS[:6]]
    streams = [manager.submit(prompt, params(20)) for prompt in PROMPTS[6:]]
    got = {}

    def read_all():
        for batch in reader:
            for session, token in batch:
                got.setdefault(session, []).append(token.token_id)

    def read(stream):
        got[stream.session] = ids(stream)

    in_threads(read_all, *[partial(read, stream) for stream in streams])
    assert [got[session] for session in [*sessions, *(stream.session for stream in streams)]] == expected
