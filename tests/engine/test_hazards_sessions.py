"""Hazards of requests: cancelled, preempted, too large, or all in need of a block at once."""

import pytest

from rosecourse import KVCacheExhausted, OnlineScheduler, RequestError
from tests.support.hazards import BS, Driver, check, each_rung, run_checked
from tests.support.oracles import hf_greedy, prompts_of

pytestmark = pytest.mark.grid


def submit(driver, lengths, new, **sizes):
    """A scheduler and its sessions."""
    scheduler = OnlineScheduler(driver.engine, **sizes)
    sessions = [driver.session(p, n) for p, n in zip(prompts_of(lengths, 211), new, strict=True)]
    for session in sessions:
        scheduler.submit(session)
    return scheduler, sessions


def assert_greedy(hf, sessions):
    """No token is missing, doubled or another than that of `transformers`; each has its time."""
    expected = hf_greedy(hf, [s.prompt_ids for s in sessions], max(s.params.max_new_tokens for s in sessions))
    for session, row in zip(sessions, expected, strict=True):
        assert session.completion_ids == row[: session.params.max_new_tokens]
        assert len(session.times.tokens) == len(session.completion_ids)


@each_rung
def test_cancel_in_every_state_gives_every_block_back(small_pair, rung):
    """Hazard 2: queued, admitted, decoding, in the step in which it finishes, after it, and each of them twice."""
    hf, model = small_pair
    driver = Driver(model, rung)
    for after_steps in range(6):
        scheduler, sessions = submit(driver, [3, 4, 5], [8, 4, 6], max_batch_size=2)  # the third waits for the second
        for _ in range(after_steps):
            scheduler.step()
        states = [session.finish_reason for session in sessions]
        for session in (*sessions[1:], *sessions[1:]):
            scheduler.cancel(session)
            check(driver.engine, scheduler.running)
        assert states[1] == (None if after_steps < 4 else "length")  # its last token came in the fourth step
        assert [s.finish_reason for s in sessions[1:]] == [states[1] or "cancelled", "cancelled"]
        run_checked(scheduler)
        assert_greedy(hf, sessions[:1])
        assert driver.kv.num_available() == driver.kv.num_blocks


@each_rung
@pytest.mark.parametrize("num_blocks", [10, 13])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_pool_too_small_for_all_makes_the_same_tokens(small_pair, rung, num_blocks, prefix_cache):
    """Hazard 8: every request finishes by preemption and recomputation."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=num_blocks, prefix_cache=prefix_cache)
    scheduler, sessions = submit(driver, [5, 11, 7, 3], [26, 26, 26, 26])
    run_checked(scheduler)
    assert scheduler.stats.preemptions > 0
    assert_greedy(hf, sessions)
    assert driver.kv.num_available() == num_blocks


@each_rung
def test_a_request_that_can_never_fit_is_refused_and_those_behind_it_run(small_pair, rung):
    """Hazard 9: a clear error and no hang; the largest that does fit is served."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=4, max_batch_size=2)
    scheduler = OnlineScheduler(driver.engine)
    sessions = []
    for prompt, new in zip(prompts_of([3, 9, 9, 16, 5], 211), [4, 9, 8, 1, 6], strict=True):
        if len(prompt) + new - 1 > 4 * BS:
            with pytest.raises(RequestError, match="need 5 KV blocks, the pool has 4"):
                driver.session(prompt, new)
        else:
            sessions.append(driver.session(prompt, new))
            scheduler.submit(sessions[-1])
    run_checked(scheduler)
    assert len(sessions) == 4
    assert_greedy(hf, sessions)


@each_rung
def test_when_all_need_a_block_and_none_is_free_some_go_on(small_pair, rung):
    """Hazard 10: four sessions at the end of their blocks in one step, and an empty pool: no step without a token."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=12)
    scheduler, sessions = submit(driver, [5, 5, 5, 5], [20, 20, 20, 20])
    seen = 0
    while scheduler.has_work:
        full = [s for s in scheduler.running if s.num_cached_tokens % BS == 0]
        seen += driver.kv.num_available() == 0 and len(full) == len(scheduler.running) == 4
        assert scheduler.step()
        check(driver.engine, [*scheduler.waiting, *scheduler.running])
    assert seen == 1
    assert scheduler.stats.preemptions > 0
    assert_greedy(hf, sessions)


@each_rung
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption_right_after_the_token_that_fills_a_block_loses_none(small_pair, rung, prefix_cache):
    """Hazard 11: when all sessions have just filled a block, there is one block for two of them."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=prefix_cache)
    scheduler, sessions = submit(driver, [BS - 2, BS - 2], [3 * BS, 3 * BS])
    preempted_at = []
    while scheduler.has_work:
        running = [s for s in scheduler.running if s.num_cached_tokens % BS == 0]
        if len(running) == 2 and len(preempted_at) < 2:
            preempted_at.append(running[1].num_cached_tokens)
            hog = driver.kv.allocate((driver.kv.num_available() - 1) * BS)
            scheduler.step()
            assert list(scheduler.running) == sessions[:1]
            driver.kv.free(hog)
        else:
            scheduler.step()
        check(driver.engine, [*scheduler.waiting, *scheduler.running])
    assert preempted_at[0] == BS
    assert scheduler.stats.preemptions == len(preempted_at)
    assert_greedy(hf, sessions)


@each_rung
def test_the_last_session_that_runs_is_refused_clearly_if_others_hold_the_pool(small_model, rung):
    """Hazard 10: nobody is left to preempt: an error, and not a byte changed, until somebody frees."""
    driver = Driver(small_model, rung)
    scheduler, (session,) = submit(driver, [BS], [3])
    scheduler.step()
    hog = driver.kv.allocate(driver.kv.num_available() * BS)
    driver.live = [session]
    before = driver.snapshot()[1]
    with pytest.raises(KVCacheExhausted, match="free or preempt one"):
        scheduler.step()
    assert driver.snapshot()[1] == before
    driver.kv.free(hog)
    run_checked(scheduler)
    assert len(session.completion_ids) == 3
