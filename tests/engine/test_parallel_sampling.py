"""Parallel sampling: several samples of a prompt are what requests of their own would give, for one prefill."""

from dataclasses import replace

import pytest

from rosecourse import (
    OnlineScheduler,
)
from tests.support.oracles import prompts_of
from tests.support.samples import (
    GREEDY,
    KINDS,
    LENGTHS,
    RUNGS,
    SAMPLED,
    alone,
    assert_all_blocks_are_back,
    completions,
    submit,
)
from tests.support.scheduling import BLOCK, check, make_engine, run

# -- the same tokens as requests of their own ---------------------------------------------------------------------


@RUNGS
@pytest.mark.parametrize(("params", "prefix_cache"), [(GREEDY, False), (SAMPLED, True)])
def test_samples_are_those_of_requests_of_their_own(small_model, rung, params, prefix_cache):
    """Prompts that end before, at and behind the end of a block; in a batch that has no place for them all."""
    prompts = prompts_of(LENGTHS, 211)
    engine = make_engine(small_model, rung.after, prefix_cache=prefix_cache)
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, prompts, params, 3)
    got = run(scheduler)
    assert completions(sessions) == alone(small_model, prompts, params, 3, rung.after)
    assert all(got[sample] == sample.completion_ids for session in sessions for sample in session.samples)
    assert scheduler.stats.preemptions == 0
    assert_all_blocks_are_back(engine)


@RUNGS
@pytest.mark.parametrize(("params", "num_blocks"), [(GREEDY, 5), (SAMPLED, 9)])
def test_a_tiny_pool_preempts_samples_and_loses_nothing(small_model, rung, params, num_blocks):
    """Those that are preempted are prefilled by themselves."""
    prompts = prompts_of([BLOCK - 1, BLOCK, 2 * BLOCK + 1], 211)
    engine = make_engine(small_model, rung.after, num_blocks=num_blocks)
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, prompts, params, 4)
    run(scheduler)
    assert scheduler.stats.preemptions > 0
    assert completions(sessions) == alone(small_model, prompts, params, 4, rung.after)
    assert_all_blocks_are_back(engine)


@KINDS
@pytest.mark.parametrize("sizes", [{}, {"max_batch_size": 1}, {"prefill_max_batch_size": 1}, {"max_batch_size": 3}])
def test_both_schedulers_give_the_same_samples(small_model, kind, sizes):
    prompts = prompts_of(LENGTHS, 211)
    scheduler = kind(make_engine(small_model), **sizes)
    sessions = submit(scheduler, prompts, SAMPLED, 5)
    run(scheduler)
    assert completions(sessions) == alone(small_model, prompts, SAMPLED, 5)
    for sample in (sample for session in sessions for sample in session.samples):
        assert 0 < sample.times.submitted <= sample.times.admitted <= sample.times.tokens[0]
        assert len(sample.times.tokens) == 10
    assert_all_blocks_are_back(scheduler.engine)


# -- what generate returns ----------------------------------------------------------------------------------------


def test_generate_returns_the_samples_of_each_prompt_in_order(model):
    engine = make_engine(model, max_seq_len=64)
    prompts, params = ["Hello", "It is"], [SAMPLED, replace(SAMPLED, seed=70, max_new_tokens=4)]
    found = engine.generate(prompts, params, n=6)
    assert [g.prompt for g in found] == ["Hello"] * 6 + ["It is"] * 6
    assert [g.token_ids for g in found] == [
        ids for prompt, p in zip(prompts, params, strict=True) for ids in alone(model, [prompt], p, 6)
    ]
    assert [g.text for g in found] == [engine.detokenize(g.token_ids) for g in found]
    assert len({tuple(g.token_ids) for g in found}) > 6  # they do differ
    assert {g.finish_reason for g in found} == {"length"}
    assert engine.generate(prompts, params, n=1) == engine.generate(prompts, params)


# -- one prefill, shared blocks -----------------------------------------------------------------------------------


def test_a_prompt_is_prefilled_once(small_model, monkeypatch):
    engine = make_engine(small_model, prefix_cache=False)
    computed, real = [], engine.runner.prefill
    monkeypatch.setattr(engine.runner, "prefill", lambda sessions: computed.extend(sessions) or real(sessions))
    engine.generate(prompts_of([5, 8], 211), SAMPLED, n=9)
    assert len(computed) == 2


@RUNGS
@pytest.mark.parametrize("length", LENGTHS)
def test_samples_share_the_blocks_of_the_prompt_until_they_differ(small_model, rung, length):
    engine = make_engine(small_model, rung.after, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    (session,) = submit(scheduler, prompts_of([length], 211), SAMPLED, 4)
    blocks = -(-length // BLOCK)
    scheduler.step()
    assert engine.kv.num_blocks - engine.kv.num_available() == blocks
    scheduler.step()  # each writes into a block of its own: a copy of the last one, or a new one
    assert engine.kv.num_blocks - engine.kv.num_available() == length // BLOCK + 4
    scheduler.audit()
    assert [len(sample.completion_ids) for sample in session.samples] == [2] * 4


def test_samples_without_a_place_wait_at_the_front_with_their_blocks(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=4, prefix_cache=False))
    first, second = submit(scheduler, prompts_of([5, 3], 211), SAMPLED, 6)
    assert len(scheduler.step()) == 6  # each has its first token
    assert list(scheduler.running) == first.samples[:4]
    assert list(scheduler.waiting) == [*first.samples[4:], second]
    assert all(sample.table is not None for sample in first.samples)
    assert not second.forks
    check(scheduler)
    run(scheduler)
    assert scheduler.stats.preemptions == 0
    assert first.samples[3].times.tokens[-1] < second.times.admitted


def test_nobody_is_admitted_with_samples_that_would_be_preempted_at_once(small_model):
    """A prompt of one block whose 4 samples need 4 more in the next step waits until they are free."""
    engine = make_engine(small_model, num_blocks=5, max_batch_size=8, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    (other,) = submit(scheduler, prompts_of([3], 211), replace(GREEDY, max_new_tokens=6), 1)
    scheduler.step()
    (session,) = submit(scheduler, prompts_of([4], 211), replace(GREEDY, max_new_tokens=4), 4)
    while not other.finished:
        scheduler.step()
        assert not session.forks
    run(scheduler)
    assert scheduler.stats.preemptions == 0
