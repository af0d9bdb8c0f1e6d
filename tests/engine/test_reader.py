"""TokenReader: one thread reads many requests, a list at a time. Every wait has a limit."""

import gc
import threading
from collections import deque
from functools import partial

import pytest

from rosecourse import BEST, LogitsError, OnlineScheduler, QueueFull, RequestError, SchedulerClosed, SchedulerManager
from rosecourse.engine.stepper import End, NewTokenItem, SharedQueue, Tokens
from rosecourse.engine.streaming import TokenReader
from rosecourse.kv.guards import bookkeeping
from tests.support.failing import spoil
from tests.support.interrupt_scenes import PROMPTS, WANTED, check_empty, generated
from tests.support.interrupt_story import make_engine as make_story_engine
from tests.support.interrupts import Scene, strike, strike_lines
from tests.support.late_device import BEHIND
from tests.support.managers import LIMIT, LONG, Gate, ids, in_threads, managers, params
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import make_engine

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


def read_all(reader, got=None):
    """Iterate to the end: for each session what it got, in order."""
    got = {} if got is None else got
    for batch in reader:
        take(batch, got)
    return got


def take(batch, got):
    assert batch, "a list of nothing"
    for session, token in batch:
        got.setdefault(session, []).append(token)
    return got


def token_ids(tokens):
    return [token.token_id for token in tokens]


def test_each_request_gets_its_own_tokens(small_pair, manage):
    """Text and reasons as a stream gives them; more requests than the batch has places; streams run beside it."""
    hf, _ = small_pair
    prompts = prompts_of([3, 8, 1, 12, 5, 4, 9, 2, 7], 211)
    manager = manage()
    streams = [manager.submit(prompt, params(12)) for prompt in prompts[:3]]
    reader = TokenReader(manager)
    sessions = [reader.submit(prompt, params(12)) for prompt in prompts]
    got = read_all(reader)
    expected = hf_greedy(hf, prompts, 12)
    assert [token_ids(got[session]) for session in sessions] == expected
    assert list(streams[0]) == got[sessions[0]]
    assert [ids(stream) for stream in streams[1:]] == expected[1:3]
    assert all(len(session.times.read) == len(session.times.tokens) == 12 for session in sessions)
    for session in sessions:
        assert all(host <= its for host, its in zip(session.times.tokens, session.times.read, strict=True))


def test_iteration_ends_and_goes_on_after_a_further_submit(manage):
    reader = TokenReader(manage())
    assert list(reader) == []
    for number in range(3):
        session = reader.submit([1, 2, number], params(4))
        assert list(map(len, read_all(reader).values())) == [4]
        assert len(session.completion_ids) == 4
        with pytest.raises(StopIteration):
            next(reader)


def test_a_list_is_all_that_has_come(manage):
    """Whoever reads late gets everything at once, in the order in which it was made."""
    manager = manage()
    reader = TokenReader(manager)
    sessions = [reader.submit([1, 2, n], params(5)) for n in range(3)]
    manager.close(drain=True)
    (batch,) = list(reader)
    assert len(batch) == 15
    for session in sessions:
        assert [token.token_id for of, token in batch if of is session] == session.completion_ids


def test_requests_of_many_threads(manage):
    """They are submitted while one thread reads; each is answered once."""
    manager = manage(max_waiting=None)
    expected = [ids(manager.submit([1, 2, n], params(6))) for n in range(4)]
    reader, sessions, got = TokenReader(manager), [], {}
    keeper = reader.submit([9], LONG)

    def submit(number):
        for _ in range(20):
            sessions.append((number, reader.submit([1, 2, number], params(6))))

    def read():
        for _ in range(3):  # the last submit may come when no request is left
            read_all(reader, got)
            done.wait(LIMIT)

    done = threading.Event()
    submitters = [threading.Thread(target=submit, args=(n,), daemon=True) for n in range(4)]

    def wait():
        for submitter in submitters:
            submitter.start()
        for submitter in submitters:
            submitter.join(LIMIT)
        done.set()

    in_threads(read, wait)
    assert len(sessions) == 80
    assert len(got) == 81
    assert len(got[keeper]) == 80
    assert all(token_ids(got[session]) == expected[number] for number, session in sessions)


def test_two_readers_of_one_manager(manage):
    manager = manage()
    readers = [TokenReader(manager) for _ in range(2)]
    sessions = [reader.submit([1, 2, 3], params(20)) for reader in readers]
    got = [{}, {}]
    in_threads(*[partial(read_all, reader, one) for reader, one in zip(readers, got, strict=True)])
    assert [list(one) for one in got] == [[session] for session in sessions]
    assert token_ids(got[0][sessions[0]]) == token_ids(got[1][sessions[1]])


# -- the tokens of a step as one item -----------------------------------------------------------------------------


def items_of(queue):
    """What lies there; of its tokens the numbers of the sessions."""
    with bookkeeping:
        return [
            [session.prompt_ids[-1] for session, _ in item.new_tokens]
            if isinstance(item, Tokens)
            else (type(item), item.session.prompt_ids[-1])
            for item in queue.take_all()
        ]


def test_a_reader_has_the_tokens_of_a_step_as_one_item(manage):
    """Last tokens and ends are items of their own, in the order in which they were made; each queue has its own."""
    manager, queues = manage(), [SharedQueue(), SharedQueue()]
    with manager._stepper.changed:  # so that all begin in one step
        for number, new in enumerate([5, 4, 6, 4]):
            manager.accept(manager.new_session([1, 2, number], params(new)), queues[number == 3])
    manager.close(drain=True)
    one, other = map(items_of, queues)
    last = {number: [(NewTokenItem, number), (End, number)] for number in range(4)}
    assert one == [[0, 1, 2]] * 3 + [[0], *last[1], [2]] + [*last[0], [2]] + last[2]
    assert other == [[3]] * 3 + last[3]


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_a_step_that_returns_the_tokens_of_several(small_pair, manage, scheduler, steps):
    """As one after a failure does. A request may have several tokens in it, the last one and earlier ones."""
    step, prompts = scheduler.step, prompts_of([3, 8, 1, 12, 5, 4], 211)
    scheduler.step = lambda: [token for _ in range(steps) for token in step()]
    manager = manage()
    readers = [TokenReader(manager) for _ in range(2)]
    sessions = [readers[n % 2].submit(prompt, params(5 + n)) for n, prompt in enumerate(prompts)]
    streams = [manager.submit(prompt, params(5 + n)) for n, prompt in enumerate(prompts)]
    got = read_all(readers[0]) | read_all(readers[1])
    expected = [tokens[: 5 + n] for n, tokens in enumerate(hf_greedy(small_pair[0], prompts, 10))]
    assert [token_ids(got[session]) for session in sessions] == [ids(stream) for stream in streams] == expected
    for session in sessions:
        assert [token.finish_reason for token in got[session]] == [None] * (len(got[session]) - 1) + ["length"]


# -- cancelled ----------------------------------------------------------------------------------------------------


def test_cancel_ends_one_request(manage, scheduler):
    gate = Gate(scheduler.runner, "launch", 4)
    reader = TokenReader(manage())
    keep, drop = (reader.submit([1, 2, n], params(20)) for n in (1, 2))
    gate.has_come()
    reader.cancel(drop)
    gate.open()
    got = read_all(reader)
    assert (len(got[keep]), keep.finish_reason) == (20, "length")
    assert token_ids(got[drop]) == drop.completion_ids
    assert (len(got[drop]) < 20, drop.finish_reason) == (True, "cancelled")


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_that_is_dropped_cancels(manage, begun):
    manager = manage()
    reader = TokenReader(manager)
    sessions = [reader.submit([1, 2, n], LONG) for n in range(6)]
    if begun:
        next(reader)
    del reader
    gc.collect()
    manager.close(drain=True)
    assert {session.finish_reason for session in sessions} == {"cancelled"}


@pytest.mark.parametrize("drain", [False, True])
def test_close_ends_the_iteration(manage, drain):
    manager = manage()
    reader = TokenReader(manager)
    sessions = [reader.submit([1, 2, n], params(30)) for n in range(6)]
    got = take(next(reader), {})
    manager.close(drain)
    read_all(reader, got)
    assert all(token_ids(got.get(session, [])) == session.completion_ids for session in sessions)
    assert not drain or {len(tokens) for tokens in got.values()} == {30}
    with pytest.raises(SchedulerClosed):
        reader.submit([1])
    assert list(reader) == []


# -- errors -------------------------------------------------------------------------------------------------------


def test_who_is_refused_leaves_nothing_behind(manage, scheduler):
    gate = Gate(scheduler.runner, "prefill")
    reader = TokenReader(manage(max_waiting=1))
    sessions = [reader.submit([1, 2], params(3))]
    gate.has_come()
    sessions.append(reader.submit([1, 2], params(3)))
    with pytest.raises(QueueFull):
        reader.submit([1, 2], params(3))
    with pytest.raises(RequestError, match="the prompt is empty"):
        reader.submit([])
    gate.open()
    assert {session: len(tokens) for session, tokens in read_all(reader).items()} == dict.fromkeys(sessions, 3)


def test_nan_ends_one_request_and_not_its_neighbours(small_pair, manage, scheduler):
    hf, _ = small_pair
    prompts = prompts_of([4, 6, 5], 211)
    expected = hf_greedy(hf, prompts, 8)
    spoil(scheduler.engine, lambda session: session.prompt_ids == prompts[1] and len(session.completion_ids) == 3)
    reader = TokenReader(manage())
    sessions = [reader.submit(prompt, params(8)) for prompt in prompts]
    got = read_all(reader)
    assert token_ids(got[sessions[0]]) == expected[0]
    assert token_ids(got[sessions[2]]) == expected[2]
    *tokens, error = got[sessions[1]]
    assert token_ids(tokens) == expected[1][:3]
    assert isinstance(error, LogitsError)


@pytest.mark.parametrize("late", [False, True])
def test_a_stepping_thread_that_fails(manage, scheduler, late):
    """The tokens that were made before are read first, however late somebody reads."""
    gate = Gate(scheduler.runner, "launch", 3)
    manager = manage()
    reader = TokenReader(manager)
    sessions = [reader.submit([1, 2, n], LONG) for n in range(6)]
    gate.has_come()

    def broken(*_):
        raise ZeroDivisionError("planted")

    scheduler.runner.launch = broken
    got = {}
    if late:
        gate.open()
        manager._stepper.thread.join(LIMIT)
    else:
        take(next(reader), got)
        gate.open()
    with pytest.raises(SchedulerClosed, match="the scheduler stopped: ZeroDivisionError: planted"):
        read_all(reader, got)
    assert all(token_ids(got.get(session, [])) == session.completion_ids for session in sessions)
    assert sum(map(len, got.values())) >= 4
    with pytest.raises(SchedulerClosed, match="ZeroDivisionError: planted"):  # and again, for whoever asks again
        next(reader)
    with pytest.raises(SchedulerClosed):
        reader.submit([1])


@pytest.mark.parametrize("parts", [BEST, BEHIND], ids=["in step", "one behind"])
def test_a_step_that_fails_after_tokens_have_landed_in_it(small_model, parts):
    """A request that begins in the very step that fails: its first token is read, and those of the others are too."""
    scheduler = OnlineScheduler(make_engine(small_model, parts))
    with managers(scheduler) as manage:
        gate = Gate(scheduler.runner, "launch", 2)
        reader = TokenReader(manage())
        old = reader.submit([1, 2, 3], LONG)
        gate.has_come()
        new = reader.submit([4, 5, 6], LONG)  # the next step begins with its prefill

        def broken(batch):
            assert batch.sessions == [old]
            raise ZeroDivisionError("planted")

        scheduler.runner.launch = broken
        gate.open()
        got = {}
        with pytest.raises(SchedulerClosed, match="the scheduler stopped: ZeroDivisionError: planted"):
            read_all(reader, got)
    assert len(new.completion_ids) == 1
    assert {session: token_ids(tokens) for session, tokens in got.items()} == {
        old: old.completion_ids,
        new: new.completion_ids,
    }


# -- interrupts -----------------------------------------------------------------------------------------------------


def story_reader():
    engine = make_story_engine("061")
    manager = SchedulerManager(OnlineScheduler(engine))
    reader = TokenReader(manager)
    return engine, manager, reader, deque(map(reader.submit, PROMPTS[:2], WANTED))


def check_reader(story, first):
    """All tokens of its requests come once, the first list among them, and none of other requests."""
    engine, manager, reader, sessions = story
    got = read_all(reader, take(first, {}) if first else {})
    assert set(got) == set(sessions)
    for session in sessions:
        assert token_ids(got[session]) == generated()[PROMPTS.index(session.prompt_ids)]
    manager.close()
    check_empty(engine)


def next_scene():
    story = story_reader()
    return Scene(lambda: next(story[2]), lambda _, read: check_reader(story, read))


def submit_scene():
    """An interrupted submit has submitted nothing."""
    story = story_reader()

    def check(interrupted, session):
        if not interrupted:
            story[3].append(session)
        check_reader(story, None)

    return Scene(lambda: story[2].submit(PROMPTS[2], WANTED[2]), check)


def test_an_interrupt_at_any_line_loses_no_list():
    assert strike_lines(next_scene, 40, "next") == 40


def test_a_submit_is_interrupted_at_any_line():
    assert strike_lines(submit_scene, 25, "submit") == 25


def test_a_submit_is_interrupted_at_its_last_line():
    """Where the request is queued, and nobody has got its session yet."""
    strike(submit_scene(), strike(submit_scene(), None) - 1)
