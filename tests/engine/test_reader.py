"""TokenReader: one thread reads many requests, a list at a time. Every wait has a limit."""

from collections import deque

import pytest

from rosecourse import BEST, OnlineScheduler, SchedulerClosed, SchedulerManager
from rosecourse.engine.stepper import End, NewTokenItem, SharedQueue, Tokens
from rosecourse.engine.streaming import TokenReader
from rosecourse.kv.guards import bookkeeping
from tests.support.interrupt_scenes import PROMPTS, WANTED, check_empty, generated
from tests.support.interrupt_story import make_engine as make_story_engine
from tests.support.interrupts import Scene, strike_lines
from tests.support.late_device import BEHIND
from tests.support.managers import LONG, Gate, ids, managers, params
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


# -- errors -------------------------------------------------------------------------------------------------------


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


def test_an_interrupt_at_any_line_loses_no_list():
    assert strike_lines(next_scene, 40, "next") == 40
