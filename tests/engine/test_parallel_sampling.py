"""Parallel sampling: several samples of a prompt are what requests of their own would give, for one prefill."""

from dataclasses import replace

import pytest

from rosecourse import BEST, LESSONS, ConfigError, OfflineScheduler, OnlineScheduler, RequestError, SamplingParams
from rosecourse.request.session import samples_of
from tests.support.failing import spoil
from tests.support.oracles import prompts_of
from tests.support.scheduling import BLOCK, check, make_engine, run

RUNGS = pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
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


def assert_all_blocks_are_back(engine):
    engine.audit([])
    assert engine.kv.num_available() == engine.kv.num_blocks


@RUNGS
@pytest.mark.parametrize(("params", "config"), [(GREEDY, {"prefix_cache": False}), (SAMPLED, {"num_blocks": 9})])
def test_samples_are_those_of_requests_of_their_own(small_model, rung, params, config):
    """Prompts that end before, at and behind the end of a block; no place for all, or a pool that preempts some."""
    prompts = prompts_of(LENGTHS, 211)
    scheduler = OnlineScheduler(make_engine(small_model, rung.after, **config))
    sessions = submit(scheduler, prompts, params, 3)
    got = run(scheduler)
    assert completions(sessions) == alone(small_model, prompts, params, 3, rung.after)
    assert all(got[sample] == sample.completion_ids for session in sessions for sample in session.samples)
    assert (scheduler.stats.preemptions > 0) == ("num_blocks" in config)
    assert_all_blocks_are_back(scheduler.engine)


@pytest.mark.parametrize("kind", [OnlineScheduler, OfflineScheduler])
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


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_sample_stops_with_the_end_of_text_by_itself(small_model, params):
    """At the first token too."""
    engine = make_engine(small_model, max_batch_size=3)
    (prompt,) = prompts_of([6], 211)
    full = alone(small_model, [prompt], params, 8)
    for eos in {full[0][0], full[1][1], full[2][4]}:
        engine.eos_token_id = eos
        found = engine.generate(prompt, replace(params, stop_on_eos=True), n=8)
        for ids, generation in zip(full, found, strict=True):
            stops = eos in ids
            assert generation.token_ids == (ids[: ids.index(eos) + 1] if stops else ids)
            assert generation.finish_reason == ("stop" if stops else "length")
        assert_all_blocks_are_back(engine)


@RUNGS
def test_logits_of_nan_end_all_samples_of_that_prompt(small_model, rung):
    engine = make_engine(small_model, rung.after, max_batch_size=16)
    spoil(engine, lambda session: session.prompt_ids[0] == 9)
    prompts = [[9] * 6, *prompts_of([5], 211), [9, 1]]
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, prompts, SAMPLED, 3)
    run(scheduler)
    for bad in (sessions[0], sessions[2]):
        assert [(s.finish_reason, s.completion_ids, s.times.tokens) for s in bad.samples] == [("error", [], [])] * 3
    assert set(scheduler.failed) == {*sessions[0].samples, *sessions[2].samples}
    assert [s.completion_ids for s in sessions[1].samples] == alone(small_model, prompts[1:2], SAMPLED, 3, rung.after)
    assert_all_blocks_are_back(engine)
    reasons = [g.finish_reason for g in engine.generate(prompts[:2], SAMPLED, n=2)]
    assert reasons == ["error", "error", "length", "length"]


@pytest.mark.parametrize(("number", "after_steps"), [(0, 1), (0, 5), (2, 2), (4, 1), (5, 2)])
def test_a_sample_is_cancelled_by_itself(small_model, number, after_steps):
    """The one that was prefilled, one that runs, one that waits for a place."""
    prompts = prompts_of([5], 211)
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=4))
    (session,) = submit(scheduler, prompts, SAMPLED, 6)
    for _ in range(after_steps):
        scheduler.step()
    cancelled = session.samples[number]
    scheduler.cancel(cancelled)
    check(scheduler)
    run(scheduler)
    expected = alone(small_model, prompts, SAMPLED, 6)
    expected[number] = expected[number][: len(cancelled.completion_ids)]
    assert completions([session]) == expected
    assert cancelled.finish_reason == "cancelled"
    assert_all_blocks_are_back(scheduler.engine)


@pytest.mark.parametrize(
    ("siblings", "error", "message"),
    [
        ("two", ConfigError, "siblings is 'two': give a list of SamplingParams"),
        (3, ConfigError, "siblings is 3: give a list of SamplingParams"),
        ([GREEDY, None], ConfigError, "each of the siblings is None: give an object of type SamplingParams"),
        ([SamplingParams(max_new_tokens=96)], RequestError, "max_new_tokens is 96: after a prompt of"),
    ],
)
def test_samples_that_cannot_be_served_are_refused_before_anything_changes(small_model, siblings, error, message):
    scheduler = OnlineScheduler(make_engine(small_model))
    session = scheduler.engine.new_session([1, 2, 3], GREEDY)
    with pytest.raises(error, match=message):
        scheduler.submit(session, siblings)
    assert not scheduler.has_work
    scheduler.submit(session, [GREEDY])
    run(scheduler)
    assert len(session.samples) == 2
