"""Schedulers: who is computed when, and that nothing is lost."""

from types import SimpleNamespace

import pytest

from rosecourse import (
    EngineConfig,
    InferenceEngine,
    KVCacheExhausted,
    OfflineScheduler,
    OnlineScheduler,
    SamplingParams,
)
from rosecourse.engine import scheduler as module
from tests.support.oracles import hf_greedy, prompts_of


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
    scheduler.engine.kv.audit(
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


def test_blocks_that_others_hold_are_an_error_and_not_a_wait(small_pair):
    """No session here could give them back: a run would step for ever. Once they are back it goes on."""
    hf, model = small_pair
    scheduler = OnlineScheduler(make_engine(model, num_blocks=4))
    taken = scheduler.engine.kv.allocate(4 * 4)
    (session,) = submit(scheduler, [5], [3])
    with pytest.raises(KVCacheExhausted):
        scheduler.step()
    assert list(scheduler.waiting) == [session]
    scheduler.engine.kv.free(taken)
    run_checked(scheduler)
    assert session.completion_ids == hf_greedy(hf, [session.prompt_ids], 3)[0]


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
    run_checked(scheduler)
    assert [s.times.admitted for s in sessions] == [100, 111]
    assert [s.times.tokens for s in sessions] == [[105, 108, 111], [116, 119, 122, 125]]
    assert (scheduler.stats.prefill_seconds, scheduler.stats.decode_seconds) == (10, 15)
    assert scheduler.stats.decode_steps == 5


def test_the_newest_is_preempted_and_comes_back_first(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=10, max_batch_size=3, prefix_cache=False))
    sessions = submit(scheduler, [7, 7, 7, 7], [12, 12, 12, 12])
    while not scheduler.stats.preemptions:
        scheduler.step()
    assert list(scheduler.running) == sessions[:2]
    assert list(scheduler.waiting) == [sessions[2], sessions[3]]
    admitted = sessions[2].times.admitted
    run_checked(scheduler)
    assert scheduler.stats.preemptions == 1
    assert sessions[2].times.admitted == admitted
    assert sessions[2].times.tokens[-1] < sessions[3].times.tokens[-1]


def test_nobody_is_admitted_only_to_be_preempted_at_once(small_model):
    """The second would leave no block for the first one's next token: it waits, and nothing is computed twice."""
    scheduler = OnlineScheduler(make_engine(small_model, num_blocks=3, prefix_cache=False))
    submit(scheduler, [4, 8], [4, 4])
    assert [len(scheduler.step()) for _ in range(4)] == [1, 1, 1, 1]
    run_checked(scheduler)
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


def test_a_fork_that_waits_gives_its_blocks_to_one_that_runs(small_model):
    """It holds blocks while it waits for a place: if they never came back, the last running one would fail."""
    params = SamplingParams(max_new_tokens=14, stop_on_eos=False)

    def tokens(num_blocks):
        config = EngineConfig(block_size=4, max_batch_size=8, num_blocks=num_blocks, max_seq_len=40, prefix_cache=False)
        engine = InferenceEngine(small_model, config)
        scheduler = OnlineScheduler(engine, max_batch_size=1)
        session = engine.new_session([9] * 13, params)
        scheduler.submit(session)
        for _ in range(3):
            scheduler.step()
        forks = [engine.fork(session) for _ in range(2)]
        for number, fork in enumerate(forks):
            fork.token_ids[-1] = 30 + number  # it goes on with another word
            scheduler.submit(fork)
        scheduler.run()
        engine.kv.audit([])
        return [s.token_ids for s in (session, *forks)], scheduler.stats.preemptions

    expected, none = tokens(num_blocks=40)
    found, preemptions = tokens(num_blocks=7)
    assert (found, none) == (expected, 0)
    assert preemptions > 0
