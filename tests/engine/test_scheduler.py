"""Schedulers: who is computed when, what is kept free for whom, and what a call costs when many wait."""

import random
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from rosecourse import OfflineScheduler, OnlineScheduler, SamplingParams, lesson
from rosecourse.engine import queues
from rosecourse.engine import scheduler as module
from rosecourse.engine.queues import Queue
from rosecourse.request.session import InferenceSession
from tests.support.late_device import BEHIND
from tests.support.oracles import prompts_of
from tests.support.scheduling import BLOCK, check, make_engine, run, submit

SIX = {"max_seq_len": 16, "max_batch_size": 6}
STEPS = [  # kind and settings of the scheduler, of the engine, lengths of prompts, new tokens, and tokens of each step
    (OnlineScheduler, {}, {"max_batch_size": 2}, [3, 3, 3], [2, 6, 4], [2] * 6),  # a free place is taken at once
    (OfflineScheduler, {}, {"max_batch_size": 2}, [3, 3, 3], [2, 6, 4], [2, 2, *[1] * 8]),  # or after the batch
    (OnlineScheduler, {"prefill_max_batch_size": 1}, {}, [3, 3, 3], 3, [1, 2, 3, 2, 1]),
    # K and V of the last token are never needed: both fill four blocks to the last slot.
    (OnlineScheduler, {}, {"num_blocks": 8}, [13, 13], 4, [2] * 4),
    # The first token of the first needs a fifth block: the other waits.
    (OnlineScheduler, {}, {"num_blocks": 8}, [16, 13], [2, 4], [1] * 6),
    # The second would leave no block for the first one's next token.
    (OnlineScheduler, {}, {"num_blocks": 3}, [4, 8], 4, [1] * 8),
    # The default pool has room for a whole batch, of whatever lengths, to the longest.
    (OnlineScheduler, {}, SIX, [14, 1, 14, BLOCK, 14, BLOCK + 1], 2, [6] * 2),
    (OnlineScheduler, {}, SIX | {"prefix_cache": True}, [12, 1, 12, BLOCK, 12, BLOCK + 1], 4, [6] * 4),
    (OnlineScheduler, {}, SIX, [3, 1, 3, 3, 3, 3], 13, [6] * 13),
]


@pytest.mark.parametrize("number", ["035", "071"])
@pytest.mark.parametrize(("kind", "settings", "config", "lengths", "new", "counts"), STEPS)
def test_step_admits_what_fits_and_preempts_nobody(small_model, number, kind, settings, config, lengths, new, counts):
    engine = make_engine(small_model, lesson(number).after, **{"prefix_cache": False} | config)
    scheduler = kind(engine, **settings)
    sessions, found = submit(scheduler, lengths, new), []
    while scheduler.has_work:
        found.append(len(scheduler.step()))
        check(scheduler)
        assert len(found) <= len(counts)
    assert found == counts
    assert scheduler.stats.preemptions == 0
    assert {session.finish_reason for session in sessions} == {"length"}


def test_schedulers_take_turns_in_one_engine(small_model):
    """Each step of one comes while a step of the other is in flight, whose tokens are not its own."""
    alone = [run_alone(small_model, 0), run_alone(small_model, 1)]
    engine = make_engine(small_model, BEHIND, prefix_cache=False)
    schedulers = [OnlineScheduler(engine) for _ in "12"]
    sessions = [submit(scheduler, LENGTHS[n], 8) for n, scheduler in enumerate(schedulers)]
    while any(scheduler.has_work for scheduler in schedulers):
        for scheduler in schedulers:
            scheduler.step()
    assert [[session.completion_ids for session in each] for each in sessions] == alone
    engine.audit([])


LENGTHS = ([3, 4], [5, 9])


def run_alone(model, number):
    scheduler = OnlineScheduler(make_engine(model, prefix_cache=False))
    sessions = submit(scheduler, LENGTHS[number], 8)
    run(scheduler)
    return [session.completion_ids for session in sessions]


def test_sessions_of_a_queue_have_numbers_from_both_ends():
    queue = Queue()
    for name in "abc":
        queue.append(name)
    assert [queue[number] for number in (0, 2, -1, -3)] == ["a", "c", "c", "a"]
    for number in (3, -4):
        with pytest.raises(IndexError):
            queue[number]


def test_times_are_those_of_prefill_and_of_decode_steps(small_model, monkeypatch):
    """On a clock that only the engine moves: 5 seconds a prefill, 3 a decode step."""
    scheduler = OnlineScheduler(make_engine(small_model), max_batch_size=1)
    clock = [100.0]
    for one in (module, queues):
        monkeypatch.setattr(one, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def takes(seconds, call):
        def timed(*arguments):
            clock[0] += seconds
            return call(*arguments)

        return timed

    runner = scheduler.runner
    runner.prefill, runner.launch = takes(5, runner.prefill), takes(3, runner.launch)
    sessions = submit(scheduler, [3, 3], [3, 4])
    run(scheduler)
    assert [s.times.admitted for s in sessions] == [100, 111]
    assert [s.times.tokens for s in sessions] == [[105, 108, 111], [116, 119, 122, 125]]
    assert (scheduler.stats.prefill_seconds, scheduler.stats.decode_seconds) == (10, 15)
    assert scheduler.stats.decode_steps == 5


def test_newest_is_preempted_and_comes_back_first(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=10, max_batch_size=3, prefix_cache=False))
    sessions = submit(scheduler, [7, 7, 7, 7], 12)
    while not scheduler.stats.preemptions:
        scheduler.step()
    assert list(scheduler.running) == sessions[:2]
    assert list(scheduler.waiting) == [sessions[2], sessions[3]]
    admitted = sessions[2].times.admitted
    run(scheduler)
    assert scheduler.stats.preemptions == 1
    assert sessions[2].times.admitted == admitted
    assert sessions[2].times.tokens[-1] < sessions[3].times.tokens[-1]


def test_admission_leaves_a_block_for_the_copy_of_a_fork(small_model):
    """Parent and fork will not outgrow their one block, but they share it, and one of them has to leave."""
    engine = make_engine(small_model, num_blocks=2, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    (parent,) = submit(scheduler, [2], 3)
    scheduler.step()
    scheduler.submit(engine.fork(parent))
    submit(scheduler, [2], 3)
    run(scheduler)
    assert scheduler.stats.preemptions == 0


def test_shared_blocks_count_once_for_admission(small_model):
    """Four prompts of 8 blocks that share all but the last token fit into a pool of 16 blocks together."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=16))
    (stem,) = prompts_of([32], 211)
    first = scheduler.engine.new_session([*stem, 1], SamplingParams(max_new_tokens=1))
    scheduler.submit(first)
    scheduler.step()
    for n in range(4):
        scheduler.submit(scheduler.engine.new_session([*stem, n], SamplingParams(max_new_tokens=4)))
    assert len(scheduler.step()) == 4


PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)


class Counted(InferenceSession):
    """A session that counts how often one was compared with another: a walk in C shows in nothing else."""

    comparisons = 0
    __hash__ = InferenceSession.__hash__

    def __eq__(self, other):
        Counted.comparisons += 1
        return self is other


def session(engine=None):
    return Counted([1, 2, 3], PARAMS, engine=engine and engine.ref)


def test_queue_is_a_list_of_sessions_that_are_in_it_once():
    rng, queue, expected = random.Random(0), Queue(), []
    for _ in range(2000):
        action = rng.randrange(4)
        if action < 2 and len(expected) < 9:
            new = session()
            (queue.append, queue.append_first)[action](new)
            expected.insert(0 if action else len(expected), new)
        elif expected:
            gone = rng.choice(expected)
            for _ in range(2):  # the second time it is not there
                queue.discard(gone)
            expected.remove(gone)
            assert gone not in queue
        assert (list(queue), len(queue), bool(queue)) == (expected, len(expected), bool(expected))
        assert list(reversed(queue)) == expected[::-1]
        assert all(one in queue for one in expected)
        for number in range(-len(expected), len(expected)):
            assert queue[number] is expected[number]
        assert (queue[1:3], queue[::-2]) == (expected[1:3], expected[::-2])
    for number in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            queue[number]


@contextmanager
def operations(counts):
    """Appends to `counts` how many lines of the package were executed, and how often sessions were compared."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if "rosecourse" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before, tracer = Counted.comparisons, sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(tracer)
    counts.append((lines, Counted.comparisons - before))


def costs(model, waiting):
    """What each call costs while so many sessions wait."""
    engine = make_engine(model, max_batch_size=2, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    running, queued = ([session(engine) for _ in range(number)] for number in (2, waiting))
    for one in running:
        scheduler.submit(one)
    scheduler.step()
    forks = [engine.fork(running[0]) for _ in range(3)]
    half = waiting // 2
    for one in (forks[0], *queued[:half], forks[1], *queued[half:], forks[2]):
        scheduler.submit(one)
    last = session(engine)

    def preempt():
        with engine.guard:
            scheduler._preempt_newest()

    calls = [partial(scheduler.submit, last)]
    calls += [partial(scheduler.cancel, one) for one in (last, queued[half], forks[1], running[1])]
    # The last of the forks that wait, then the first, which is computed anew; one that runs, which comes back.
    calls += [preempt, preempt, scheduler.step, preempt, scheduler.step]
    calls += [lambda: len(scheduler.waiting) + (queued[-1] in scheduler.waiting)]
    counts = []
    for call in calls:
        with operations([] if call is preempt else counts):  # which looks for the newest fork that waits
            call()
    assert scheduler.stats.preemptions == 3
    assert [s for s in scheduler.waiting if s in forks] == [forks[2]]
    return counts


def test_no_call_costs_more_when_more_sessions_wait(small_model):
    """Hazard 38: lines and comparisons are counted, not time."""
    assert costs(small_model, 1000) == costs(small_model, 4000)
