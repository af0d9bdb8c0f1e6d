"""Schedulers: who is computed when, and what is kept free for whom."""

from types import SimpleNamespace

import pytest

from rosecourse import LESSONS, OfflineScheduler, OnlineScheduler, SamplingParams
from rosecourse.engine import scheduler as module
from tests.support.oracles import prompts_of
from tests.support.scheduling import BLOCK, check, make_engine, run, submit


def tokens_of_steps(scheduler):
    """Step to the end; how many sessions got a token in each step."""
    counts = []
    while scheduler.has_work:
        counts.append(len(scheduler.step()))
        check(scheduler)
        assert len(counts) < 1000
    return counts


@pytest.mark.parametrize(
    ("kind", "counts"),
    [(OnlineScheduler, [2] * 6), (OfflineScheduler, [2, 2, 1, 1, 1, 1, 1, 1, 1, 1])],
)
def test_a_free_place_is_taken_at_once_or_after_the_batch(small_model, kind, counts):
    scheduler = kind(make_engine(small_model, max_batch_size=2))
    sessions = submit(scheduler, [3, 3, 3], [2, 6, 4])
    assert tokens_of_steps(scheduler) == counts
    assert [session.finish_reason for session in sessions] == ["length"] * 3
    came = sessions[2].times.admitted
    assert sessions[0].times.tokens[-1] < came
    assert (came < sessions[1].times.tokens[-1]) == (kind is OnlineScheduler)


def test_prefill_max_batch_size_limits_a_prefill(small_model):
    scheduler = OnlineScheduler(make_engine(small_model), prefill_max_batch_size=1)
    submit(scheduler, [3, 3, 3], 9)
    assert [len(scheduler.step()) for _ in range(3)] == [1, 2, 3]


def test_the_times_are_those_of_prefill_and_of_decode_steps(small_model, monkeypatch):
    """On a clock that only the engine moves: 5 seconds a prefill, 3 a decode step."""
    scheduler = OnlineScheduler(make_engine(small_model), max_batch_size=1)
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

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


def test_the_newest_is_preempted_and_comes_back_first(small_model):
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


# -- what is kept free ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "prefix_cache"), [(2, False), (4, True), (13, False)])
@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_the_default_pool_has_room_for_a_whole_batch(small_model, rung, new, prefix_cache):
    """Of whatever lengths, to the longest: nobody waits for a block and nobody is preempted."""
    engine = make_engine(small_model, rung.after, max_seq_len=16, max_batch_size=6, prefix_cache=prefix_cache)
    scheduler = OnlineScheduler(engine)
    longest = 16 - new
    submit(scheduler, [longest, 1, longest, min(BLOCK, longest), longest, min(BLOCK + 1, longest)], new)
    assert tokens_of_steps(scheduler) == [6] * new
    assert scheduler.stats.preemptions == 0


@pytest.mark.parametrize(
    ("num_blocks", "lengths", "new", "counts"),
    [
        (8, [13, 13], 4, [2] * 4),  # K and V of the last token are never needed: both fill four blocks to the last slot
        (8, [16, 13], [2, 4], [1, 1, 1, 1, 1, 1]),  # the first token of the first needs a fifth block: the other waits
        (3, [4, 8], 4, [1] * 8),  # the second would leave no block for the first one's next token
    ],
)
def test_nobody_is_admitted_only_to_be_preempted_at_once(small_model, num_blocks, lengths, new, counts):
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=num_blocks, prefix_cache=False))
    submit(scheduler, lengths, new)
    assert tokens_of_steps(scheduler) == counts
    assert scheduler.stats.preemptions == 0


def test_admission_leaves_a_block_for_the_copy_that_a_fork_needs(small_model):
    """Parent and fork will not outgrow their one block, but they share it, and one of them has to leave."""
    engine = make_engine(small_model, num_blocks=2, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    (parent,) = submit(scheduler, [2], 3)
    scheduler.step()
    scheduler.submit(engine.fork(parent))
    submit(scheduler, [2], 3)
    run(scheduler)
    assert scheduler.stats.preemptions == 0


def test_all_that_run_get_their_token_when_it_is_a_waiting_fork_that_goes(small_model):
    """The fork waits for a place with a block of its own, which its parent left to it: that block is enough."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=4, prefix_cache=False), max_batch_size=2)
    sessions = submit(scheduler, [BLOCK - 1, BLOCK - 1], 6)
    scheduler.step()
    fork = scheduler.engine.fork(sessions[0])
    scheduler.submit(fork)
    scheduler.step()
    assert not scheduler.engine.can_append(sessions)
    assert [session for session, _ in scheduler.step()] == sessions
    assert fork.block_ids_per_layer is None
    assert scheduler.stats.preemptions == 1
    run(scheduler)


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
