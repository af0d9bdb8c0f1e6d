"""What streams in threads, streams of coroutines and one reader of many requests promise. Every wait has a limit."""

import asyncio
import gc
from functools import partial

import pytest

from rosecourse import BEST, LogitsError, OnlineScheduler, SchedulerClosed, TokenReader
from rosecourse.decode.delivery import Delivery
from tests.support.failing import spoil
from tests.support.late_device import BEHIND
from tests.support.managers import LIMIT, LONG, Gate, in_threads, managers, params
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

PROMPTS = prompts_of([3, 8, 1, 12, 5, 4, 9, 2, 7], 211)
PARTS = {"in step": BEST.with_(delivery=partial(Delivery, wakes_per_second=1e-9)), "one behind": BEHIND}


class Streams:
    """Each request has a stream of its own."""

    def __init__(self, manager):
        self.manager, self.streams = manager, []

    def submit(self, prompt, asked):
        self.streams.append(self.manager.submit(prompt, asked))
        return self.streams[-1].session

    def cancel(self, number):
        self.streams[number].cancel()

    def first(self):
        """Read the first token of the first request."""
        return [next(self.streams[0])]

    def read(self):
        """For each request its tokens, and what it raised or None."""
        told = [([], []) for _ in self.streams]
        in_threads(*[partial(self._read, *each) for each in zip(self.streams, told, strict=True)])
        return [(tokens, error) for tokens, (error,) in told]

    @staticmethod
    def _read(stream, told):
        error = None
        try:
            told[0].extend(stream)
        except (LogitsError, SchedulerClosed) as raised:
            error = raised
        told[1].append(error)

    def drop(self):
        """Nobody holds the streams any more."""
        self.streams.clear()

    def close(self):
        self.drop()


class AsyncStreams(Streams):
    """They are read by coroutines of one event loop."""

    def __init__(self, manager):
        super().__init__(manager)
        self.runner = asyncio.Runner()

    def run(self, coroutine):
        return self.runner.run(asyncio.wait_for(coroutine, LIMIT))

    def submit(self, prompt, asked):
        async def submitted():
            return self.manager.submit_async(prompt, asked)

        self.streams.append(self.run(submitted()))
        return self.streams[-1].session

    def first(self):
        async def read():
            return [await anext(self.streams[0])]

        return self.run(read())

    def read(self):
        async def one(stream):
            tokens = []
            try:
                async for token in stream:
                    tokens.append(token)
            except (LogitsError, SchedulerClosed) as error:
                return tokens, error
            return tokens, None

        async def every():
            return await asyncio.gather(*map(one, self.streams))

        return self.run(every())

    def close(self):
        self.drop()
        self.runner.close()


class Lists(Streams):
    """All requests are read by one reader, a list at a time."""

    def __init__(self, manager):
        self.manager, self.reader, self.sessions, self.came = manager, TokenReader(manager), [], []

    def submit(self, prompt, asked):
        self.sessions.append(self.reader.submit(prompt, asked))
        return self.sessions[-1]

    def cancel(self, number):
        self.reader.cancel(self.sessions[number])

    def first(self):
        """What it reads beside it is kept for `read`."""
        while not (mine := [one for one in self.came if one[0] is self.sessions[0]]):
            self.came += next(self.reader)
        self.came.remove(mine[0])
        return [mine[0][1]]

    def read(self):
        failed, (came, self.came) = None, (self.came, [])
        try:
            for batch in self.reader:
                assert batch, "a list of nothing"
                came += batch
        except SchedulerClosed as error:
            failed = error
        told = []
        for session in self.sessions:
            mine = [token for of, token in came if of is session]
            ill = [token for token in mine if isinstance(token, LogitsError)]
            ended = session.finish_reason == "length" and len(mine) == len(session.completion_ids)
            told.append(([t for t in mine if t not in ill], ill[0] if ill else None if ended else failed))
        return told

    def drop(self):
        self.reader, self.came = None, []


@pytest.fixture(params=PARTS)
def scheduler(small_model, request):
    return OnlineScheduler(make_engine(small_model, PARTS[request.param], prefix_cache=False))


@pytest.fixture(params=[Streams, AsyncStreams, Lists])
def start(scheduler, request):
    """Makes a manager and a reader of it."""
    readers = []
    with managers(scheduler) as make:

        def begin(**settings):
            manager = make(**settings)
            readers.append(request.param(manager))
            return manager, readers[-1]

        yield begin
        for reader in readers:
            reader.close()


@pytest.fixture(scope="module")
def expected(small_pair):
    """20 tokens of each prompt."""
    return hf_greedy(small_pair[0], PROMPTS, 20)


def ids(tokens):
    return [token.token_id for token in tokens]


@pytest.mark.parametrize("steps", [1, 3])
def test_each_request_gets_its_own_tokens_once_in_order(start, scheduler, expected, steps):
    """Hazard 22, in small: more requests than places, and those that end in one step. A token has two times.

    After a failure a step returns the tokens of several, the last one of a request and earlier ones among them.
    """
    step = scheduler.step
    scheduler.step = lambda: [token for _ in range(steps) for token in step()]
    manager, reader = start()
    for new in (2, 20):
        sessions = [reader.submit(prompt, params(new)) for prompt in PROMPTS]
        told = reader.read()[-len(PROMPTS) :]
        assert [ids(tokens) for tokens, _ in told] == [tokens[:new] for tokens in expected]
        for session, (tokens, error) in zip(sessions, told, strict=True):
            assert error is None
            assert [token.finish_reason for token in tokens] == [None] * (new - 1) + ["length"]
            assert len(session.times.tokens) == len(session.times.read) == new
            assert session.times.read == sorted(session.times.read)
            assert all(host <= its for host, its in zip(session.times.tokens, session.times.read, strict=True))
    assert not any(tokens for tokens, _ in reader.read())  # it stays ended
    manager.close()
    assert not manager._stepper.mailboxes


def test_reader_that_does_not_read_holds_up_nobody(start, expected):
    """It stops after a token; all others come to their ends, and its own tokens wait for it."""
    manager, slow = start()
    slow_session = slow.submit(PROMPTS[0], params(20))
    first = slow.first()
    stream = manager.submit(PROMPTS[1], params(20))
    assert ids(stream) == expected[1]
    manager.close(drain=True)
    assert (len(slow_session.times.tokens), len(slow_session.times.read)) >= (20, 1)
    ((tokens, error),) = slow.read()
    assert (ids(first + tokens), error) == (expected[0], None)


@pytest.mark.parametrize(("name", "call"), [("prefill", 1), ("prefill", 2), ("launch", 3), ("launch", 6)])
def test_cancel_ends_one_request(start, scheduler, expected, name, call):
    """Hazard 2: queued, admitted and not computed yet, decoding; the stepping thread stands still there meanwhile."""
    first_prefill = Gate(scheduler.runner, "prefill")
    gate = first_prefill if (name, call) == ("prefill", 1) else Gate(scheduler.runner, name, call)
    _, reader = start()
    reader.submit(PROMPTS[0], params(20))
    first_prefill.has_come()
    dropped = reader.submit(PROMPTS[1], params(20))
    if gate is not first_prefill:
        first_prefill.open()
        gate.has_come()
    reader.cancel(1)
    reader.cancel(1)
    gate.open()
    (kept, _), (tokens, error) = reader.read()
    assert ids(kept) == expected[0]
    assert ids(tokens) == dropped.completion_ids == expected[1][: len(tokens)]
    assert (error, dropped.finish_reason, len(tokens) < 20) == (None, "cancelled", True)
    reader.cancel(1)  # after its end


@pytest.mark.parametrize("drain", [False, True])
def test_close_ends_all(start, scheduler, expected, drain):
    """With a step in flight: what was read is a beginning, or all."""
    gate = Gate(scheduler.runner, "launch", 5)
    manager, reader = start()
    sessions = [reader.submit(prompt, params(20)) for prompt in PROMPTS]
    gate.has_come()
    manager._stepper.end(drain)
    gate.open()
    manager.close(drain)
    told = reader.read()
    assert [ids(tokens) for tokens, _ in told] == [session.completion_ids for session in sessions]
    assert [error for _, error in told] == [None] * len(PROMPTS)
    if drain:
        assert [ids(tokens) for tokens, _ in told] == expected
    else:
        assert {session.finish_reason for session in sessions} == {"cancelled"}
    with pytest.raises(SchedulerClosed, match="make a new SchedulerManager"):
        reader.submit([1], params(2))


@pytest.mark.parametrize("name", ["prefill", "can_append", "launch", "begin", "land", "hand_over"])
def test_all_hear_of_a_stepping_thread_that_fails(start, scheduler, expected, name):
    """After the tokens that were made before, however late one reads, and again; by then all blocks are free."""
    engine = scheduler.engine
    owners = {"can_append": engine.kv, "hand_over": engine.delivery}
    gate = Gate(scheduler.runner, "launch", 3)
    manager, reader = start()
    sessions = [reader.submit(prompt, LONG) for prompt in PROMPTS]
    gate.has_come()
    setattr(owners.get(name, scheduler.runner), name, lambda *_: 1 / 0)
    if name in ("prefill", "begin"):  # which come when a place is free
        manager.cancel(sessions[0])
    gate.open()
    told = reader.read()
    assert engine.kv.num_available() == engine.kv.num_blocks
    for (tokens, error), session, mine in zip(told, sessions, expected, strict=True):
        assert ids(tokens) == mine[: len(tokens)]
        left = len(session.completion_ids) - len(tokens)
        assert name == "hand_over" or left in (0, engine.pipeline.steps_ahead)  # in flight: it goes with the failure
        if session is not sessions[0]:
            assert "the scheduler stopped: ZeroDivisionError: " in str(error)
    for _, error in reader.read()[1:]:  # again, for whoever asks again
        assert isinstance(error, SchedulerClosed)
    with pytest.raises(SchedulerClosed) as refused:
        reader.submit([1], params(2))
    assert isinstance(refused.value.__cause__, ZeroDivisionError)
    manager._stepper.thread.join(LIMIT)
    assert not manager._stepper.thread.is_alive()


def test_nan_ends_one_request_and_not_its_neighbours(start, scheduler, expected):
    spoil(scheduler.engine, lambda session: session.prompt_ids == PROMPTS[1] and len(session.completion_ids) == 3)
    _, reader = start()
    for prompt in PROMPTS:
        reader.submit(prompt, params(20))
    told = reader.read()
    assert [ids(tokens) for tokens, _ in told] == [expected[0], expected[1][:3], *expected[2:]]
    assert [error is None for _, error in told] == [True, False, *[True] * (len(PROMPTS) - 2)]
    assert isinstance(told[1][1], LogitsError)


@pytest.mark.parametrize("begun", [False, True])
def test_requests_that_nobody_reads_any_more_are_cancelled(start, begun):
    manager, reader = start()
    sessions = [reader.submit(prompt, LONG) for prompt in PROMPTS]
    if begun:
        reader.first()
    reader.drop()
    gc.collect()
    manager.close(drain=True)
    assert {session.finish_reason for session in sessions} <= {"cancelled", "length"}
    assert sessions[-1].finish_reason == "cancelled"


def test_step_that_fails_after_a_landing_loses_no_token(start, scheduler):
    """A request that begins in the very step that fails: its first token is read, and those of the others are too."""
    gate = Gate(scheduler.runner, "launch", 2)
    _, reader = start()
    old = reader.submit(PROMPTS[0], LONG)
    gate.has_come()
    new = reader.submit(PROMPTS[1], LONG)  # the next step begins with its prefill

    def broken(batch):
        assert batch.sessions == [old]
        raise ZeroDivisionError("planted")

    scheduler.runner.launch = broken
    gate.open()
    assert [ids(tokens) for tokens, _ in reader.read()] == [old.completion_ids, new.completion_ids]
    assert len(new.completion_ids) == 1
