"""Schedulers: who is computed when, and that nothing is lost."""

import pytest
from oracles import hf_greedy, prompts_of

from rosecourse import ConfigError, EngineConfig, InferenceEngine, OfflineScheduler, OnlineScheduler, SamplingParams


def make_engine(model, **config):
    return InferenceEngine(model, EngineConfig(**{"block_size": 4, "max_batch_size": 4} | config))


def submit(scheduler, lengths, new):
    sessions = [
        scheduler.engine.new_session(p, SamplingParams(max_new_tokens=n, stop_on_eos=False))
        for p, n in zip(prompts_of(lengths, 211), new, strict=True)
    ]
    for session in sessions:
        scheduler.submit(session)
    return sessions


def check(scheduler):
    cache = scheduler.engine.prefix_cache
    scheduler.engine.kv.check(
        [s.block_ids_per_layer for s in scheduler.running], cache.entries() if cache is not None else []
    )


def run_checked(scheduler):
    """Step to the end with the invariants checked; returns the number of sessions that got a token in each step."""
    counts = []
    while scheduler.has_work:
        counts.append(len(scheduler.step()))
        check(scheduler)
        assert len(counts) < 1000
    return counts


def test_a_place_is_taken_again_as_soon_as_it_is_free(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=2))
    sessions = submit(scheduler, [3, 3, 3], [2, 6, 4])
    assert run_checked(scheduler) == [2, 2, 2, 2, 2, 2]
    assert [s.finish_reason for s in sessions] == ["length"] * 3
    # The third came in when the first was done, while the second went on.
    assert sessions[0].times.tokens[-1] < sessions[2].times.admitted < sessions[1].times.tokens[-1]


def test_static_batches_wait_for_their_last_session(small_model):
    scheduler = OfflineScheduler(make_engine(small_model, max_batch_size=2))
    sessions = submit(scheduler, [3, 3, 3], [2, 6, 4])
    assert run_checked(scheduler) == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert sessions[2].times.admitted > sessions[1].times.tokens[-1]


@pytest.mark.parametrize("kind", [OnlineScheduler, OfflineScheduler])
def test_both_give_the_tokens_of_transformers(small_pair, kind):
    hf, model = small_pair
    scheduler = kind(make_engine(model), prefill_max_batch_size=3)
    sessions = submit(scheduler, [3, 8, 1, 12, 5, 4], [12, 3, 20, 1, 7, 12])
    run_checked(scheduler)
    expected = hf_greedy(hf, [s.prompt_ids for s in sessions], 20)
    assert [s.completion_ids for s in sessions] == [
        row[: s.params.max_new_tokens] for s, row in zip(sessions, expected, strict=True)
    ]
    assert [len(s.times.tokens) for s in sessions] == [12, 3, 20, 1, 7, 12]
    assert all(0 < s.times.submitted <= s.times.admitted <= s.times.tokens[0] for s in sessions)


def test_prefill_max_batch_size_limits_a_prefill(small_model):
    scheduler = OnlineScheduler(make_engine(small_model), prefill_max_batch_size=1)
    submit(scheduler, [3, 3, 3], [9, 9, 9])
    assert [len(scheduler.step()) for _ in range(3)] == [1, 2, 3]


def test_admission_is_in_order_of_arrival(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=1))
    sessions = submit(scheduler, [20, 1, 9], [2, 2, 2])
    run_checked(scheduler)
    assert [s.times.admitted for s in sessions] == sorted(s.times.admitted for s in sessions)


@pytest.mark.parametrize("num_blocks", [10, 11, 13, 17, 25])
def test_a_pool_too_small_for_all_preempts_and_loses_nothing(small_pair, num_blocks):
    hf, model = small_pair
    scheduler = OnlineScheduler(make_engine(model, num_blocks=num_blocks))
    sessions = submit(scheduler, [5, 11, 7, 3], [30, 30, 30, 30])
    run_checked(scheduler)
    assert scheduler.stats.preemptions > 0
    assert [s.completion_ids for s in sessions] == hf_greedy(hf, [s.prompt_ids for s in sessions], 30)
    assert [len(s.times.tokens) for s in sessions] == [30] * 4


def test_a_roomy_pool_preempts_nobody(small_model):
    scheduler = OnlineScheduler(make_engine(small_model))
    submit(scheduler, [5, 11, 7, 3], [30, 30, 30, 30])
    run_checked(scheduler)
    assert scheduler.stats.preemptions == 0
    assert scheduler.stats.decode_steps == 29


@pytest.mark.parametrize("after_steps", [0, 1, 3, 7])
def test_cancel_in_every_state(small_pair, after_steps):
    hf, model = small_pair
    scheduler = OnlineScheduler(make_engine(model, max_batch_size=2, prefix_cache=False))
    sessions = submit(scheduler, [3, 4, 5], [8, 4, 6])  # the third waits at first; the second ends in step 4
    for _ in range(after_steps):
        scheduler.step()
    for session in (sessions[1], sessions[2], sessions[1]):
        scheduler.cancel(session)
        check(scheduler)
    run_checked(scheduler)
    assert sessions[0].completion_ids == hf_greedy(hf, [sessions[0].prompt_ids], 8)[0]
    assert sessions[1].finish_reason == ("cancelled" if after_steps < 4 else "length")
    assert sessions[2].finish_reason == "cancelled"
    assert scheduler.engine.kv.num_available() == scheduler.engine.kv.num_blocks


@pytest.mark.parametrize(
    "sizes", [{"max_batch_size": 0}, {"max_batch_size": 5}, {"prefill_max_batch_size": 0}, {"max_batch_size": 1.0}]
)
def test_impossible_sizes_are_refused(small_model, sizes):
    (name,) = sizes
    with pytest.raises(ConfigError, match=f"{name} is {sizes[name]!r}"):
        OnlineScheduler(make_engine(small_model), **sizes)
