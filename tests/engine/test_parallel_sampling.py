"""Parallel sampling: several samples of a prompt are what requests of their own would give, for one prefill."""

from dataclasses import replace

import pytest

from rosecourse import BEST, LESSONS, OnlineScheduler, SamplingParams
from rosecourse.request.session import samples_of
from tests.support.failing import spoil
from tests.support.oracles import prompts_of
from tests.support.scheduling import BLOCK, make_engine, run

LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK]
GREEDY = SamplingParams(max_new_tokens=10, stop_on_eos=False)
SAMPLED = replace(GREEDY, temperature=1.0, seed=7)


def alone(model, prompts, params, n, parts=BEST):
    """The same samples by requests of their own, none of which shares a block with another."""
    engine = make_engine(model, parts, prefix_cache=False)
    return [engine.generate(p, replace(params, seed=params.seed + i))[0].token_ids for p in prompts for i in range(n)]


def submit(scheduler, prompts, params, n):
    """Requests of n samples each."""
    sessions = [scheduler.engine.new_session(prompt, params) for prompt in prompts]
    for session in sessions:
        scheduler.submit(session, samples_of(params, n)[1:])
    return sessions


def completions(sessions):
    return [sample.completion_ids for session in sessions for sample in session.samples]


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
@pytest.mark.parametrize(("params", "config"), [(GREEDY, {"prefix_cache": False}), (SAMPLED, {"num_blocks": 9})])
def test_samples_are_those_of_requests_of_their_own(small_model, rung, params, config):
    """Prompts that end before, at and behind the end of a block; no place for all, or a pool that preempts some.

    One of them makes NaN: all of its samples end.
    """
    prompts = prompts_of(LENGTHS, 211)
    engine = make_engine(small_model, rung.after, **config)
    spoil(engine, lambda session: session.prompt_ids[:2] == [9, 9])
    scheduler = OnlineScheduler(engine)
    *sessions, bad = submit(scheduler, [*prompts, [9] * 6], params, 3)
    got = run(scheduler)
    assert completions(sessions) == alone(small_model, prompts, params, 3, rung.after)
    assert all(got[sample] == sample.completion_ids for session in sessions for sample in session.samples)
    assert [(s.finish_reason, s.completion_ids, s.times.tokens) for s in bad.samples] == [("error", [], [])] * 3
    assert set(scheduler.failed) == {*bad.samples}
    assert all(sample.times.submitted == s.times.submitted > 0 for s in sessions for sample in s.samples)
    assert (scheduler.stats.preemptions > 0) == ("num_blocks" in config)
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks


def test_generate_returns_the_samples_of_each_prompt_in_order(model):
    engine = make_engine(model, max_seq_len=64)
    prompts, params = ["Hello", "It is"], [SAMPLED, replace(SAMPLED, seed=70, max_new_tokens=4)]
    found = engine.generate(prompts, params, n=6)
    assert [g.prompt for g in found] == ["Hello"] * 6 + ["It is"] * 6
    expected = [alone(model, [prompt], p, 6) for prompt, p in zip(prompts, params, strict=True)]
    assert [g.token_ids for g in found] == [*expected[0], *expected[1]]
    assert [g.text for g in found] == [engine.detokenize(g.token_ids) for g in found]
    assert len({tuple(g.token_ids) for g in found}) > 6  # they do differ
    assert engine.generate(prompts, params, n=1) == engine.generate(prompts, params)


@pytest.mark.parametrize("length", LENGTHS)
def test_samples_share_the_prompts_blocks_until_they_differ(small_model, length):
    engine = make_engine(small_model, prefix_cache=False)
    scheduler = OnlineScheduler(engine)
    submit(scheduler, prompts_of([length], 211), SAMPLED, 4)
    scheduler.step()
    assert engine.kv.num_blocks - engine.kv.num_available() == -(-length // BLOCK)
    scheduler.step()  # each writes into a block of its own: a copy of the last one, or a new one
    assert engine.kv.num_blocks - engine.kv.num_available() == length // BLOCK + 4


def test_samples_without_a_place_wait_at_the_front(small_model):
    """With their blocks."""
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=4, prefix_cache=False))
    first, second = submit(scheduler, prompts_of([5, 3], 211), SAMPLED, 6)
    assert len(scheduler.step()) == 6  # each has its first token
    assert list(scheduler.running) == first.samples[:4]
    assert list(scheduler.waiting) == [*first.samples[4:], second]
    assert all(sample.table is not None for sample in first.samples)
    assert not second.forks
    run(scheduler)
    assert scheduler.stats.preemptions == 0
    assert first.samples[3].times.tokens[-1] < second.times.admitted


def test_samples_that_would_be_preempted_are_not_admitted(small_model):
    """A prompt of one block whose 4 samples need 4 more in the next step waits until they are free."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=5, max_batch_size=8, prefix_cache=False))
    (other,) = submit(scheduler, prompts_of([3], 211), replace(GREEDY, max_new_tokens=6), 1)
    scheduler.step()
    (session,) = submit(scheduler, prompts_of([4], 211), replace(GREEDY, max_new_tokens=4), 4)
    while not other.finished:
        scheduler.step()
        assert not session.forks
    run(scheduler)
    assert scheduler.stats.preemptions == 0


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_sample_stops_with_the_end_of_text_by_itself(small_model, params):
    """At the first token too."""
    engine = make_engine(small_model, max_batch_size=3)
    (prompt,) = prompts_of([6], 211)
    full = alone(small_model, [prompt], params, 8)
    for eos in {full[0][0], full[1][1], full[2][4]}:
        engine.eos_token_id = eos
        found = engine.generate(prompt, replace(params, stop_on_eos=True), n=8)
        assert [g.token_ids for g in found] == [ids[: [*ids, eos].index(eos) + 1] for ids in full]
        assert [g.finish_reason for g in found] == ["stop" if eos in ids else "length" for ids in full]
