"""Hazards of blocks: who owns them, who gets them, what is shared, and that a call that gets none changes nothing."""

import pytest
import torch

from rosecourse import (
    BlockError,
    KVCacheExhausted,
    OnlineScheduler,
)
from rosecourse.kv import prefix_cache as prefix_cache_module
from tests.support.hazards import BS, Driver, assert_holds_its_own
from tests.support.layouts import OneTable
from tests.support.oracles import hf_greedy, prompts_of

BOTH = pytest.mark.parametrize("rung", ["061", "071"])  # a list of blocks for each layer, and one for all


@BOTH
def test_double_free_and_a_stale_holder_leave_the_new_owner_alone(small_pair, rung):
    """Hazard 1: one list is freed twice, and by a stale holder after its blocks went to someone else."""
    hf, model = small_pair
    driver = Driver(model, rung, num_blocks=4)
    first, _ = driver.start_lengths(6, 5)
    stale = first.block_ids_per_layer
    copied = driver.layout.copy(stale)
    held = driver.layout.lists(stale)
    driver.free(first)
    with pytest.raises(BlockError, match="freed before"):
        driver.engine.free(first)
    with pytest.raises(BlockError, match="or a copy"):
        driver.kv.free(copied)  # its blocks are nobody's
    (second,) = driver.start_lengths(7)
    assert [set(ids) for ids in driver.layout.lists(second.table)] == [set(ids) for ids in held]
    for _ in range(2):
        with pytest.raises(BlockError, match="freed twice"):
            driver.kv.free(stale)
        driver.check()
    driver.step(second)
    assert_holds_its_own(hf, driver.kv, second)


def failing_at(driver, monkeypatch, number):
    """Let the allocation of a block fail at its call `number`, counted from 0; returns the calls."""
    real, calls = driver.kv.allocate_block, []

    def allocate_block(*args):
        calls.append(args)
        if len(calls) == number + 1:
            raise KVCacheExhausted("injected")
        return real(*args)

    monkeypatch.setattr(driver.kv, "allocate_block", allocate_block)
    return calls


def a_batch_that_needs_blocks(driver):
    """Sessions at a block's end, inside a block, three that share a block that is not full: 5 blocks a layer."""
    sessions = driver.start_lengths(4, 6, 8, 4, 2)
    driver.fork(sessions[1], token_id=7)
    driver.fork(sessions[1], token_id=9)
    return 5


# The blocks of a layer that a call takes, beside sessions of 8 and of 6 tokens, the latter with a sibling.
PATHS = {
    "reserve": (4, lambda driver: driver.engine.reserve(driver.session([3] * 14))),
    "reserve with a hit of two blocks": (2, lambda driver: driver.engine.reserve(driver.session([5] * 14))),
    "prefill": (2 * 3, lambda driver: driver.engine.prefill([driver.session([n] * 9) for n in (1, 2)])),
}


@BOTH
@pytest.mark.parametrize("path", PATHS)
def test_an_allocation_that_fails_at_any_call_changes_nothing(small_model, monkeypatch, rung, path):
    """Hazard 3: a failure at call k for every k. What the manager's own calls take is in tests/kv."""
    needed, call = PATHS[path]
    driver = Driver(small_model, rung, prefix_cache=True)
    driver.start([5] * 8, [6] * 6)
    driver.fork(driver.live[1])
    before = driver.snapshot()
    for number in range(needed * (1 if isinstance(driver.layout, OneTable) else 3)):
        with monkeypatch.context() as patch:
            calls = failing_at(driver, patch, number)
            with pytest.raises(KVCacheExhausted, match="injected"):
                call(driver)
        assert len(calls) == number + 1
        assert driver.snapshot() == before
        driver.check()
    call(driver)


@BOTH
def test_a_step_that_lacks_any_number_of_blocks_changes_nothing(small_model, rung):
    """Hazard 3, Hazard 4: a decode step whose batch lacks blocks, for copies too, is refused; no byte has changed."""
    driver = Driver(small_model, rung)
    needed = a_batch_that_needs_blocks(driver)
    for available in range(needed):
        hog = driver.kv.allocate((driver.kv.num_available() - available) * BS)
        before = driver.snapshot()
        with pytest.raises(KVCacheExhausted, match="free or preempt one"):
            driver.engine.decode_step_sessions(driver.live)
        assert driver.snapshot() == before
        driver.kv.free(hog)
    hog = driver.kv.allocate((driver.kv.num_available() - needed) * BS)
    driver.engine.take_tokens(driver.live, driver.engine.decode_step_sessions(driver.live))
    assert driver.kv.num_available() == 0
    driver.kv.free(hog)
    driver.check()


@pytest.mark.parametrize("number", range(5))
def test_a_place_that_fails_at_any_block_changes_no_session(small_pair, monkeypatch, number):
    """Hazard 24: a failure at block k for every k: those before it have no block that nobody has copied into."""
    hf, model = small_pair
    driver = Driver(model, "071")
    needed = a_batch_that_needs_blocks(driver)
    before = driver.snapshot()
    with monkeypatch.context() as patch:
        failing_at(driver, patch, number)
        with pytest.raises(KVCacheExhausted, match="injected"):
            driver.engine.decode_step_sessions(driver.live)
    assert driver.snapshot() == before
    driver.check()
    available = driver.kv.num_available()
    driver.step()
    assert driver.kv.num_available() == available - needed
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)


@BOTH
@pytest.mark.parametrize("leaves", [0, 2])
def test_siblings_of_a_partial_block_see_their_own_tokens(small_pair, rung, leaves):
    """Hazard 5: each writes its own K and V into what was shared; whoever leaves first, the parent (0) too."""
    hf, model = small_pair
    driver = Driver(model, rung)
    parent, *_ = driver.start_lengths(6, 3)
    family = [parent, *(driver.fork(parent, token_id) for token_id in (11, 12))]
    driver.free(family.pop(leaves))
    known = [list(session.token_ids) for session in driver.live]
    for _ in range(4):
        driver.step()
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)
    expected = hf_greedy(hf, known, 4)
    assert [s.token_ids for s in driver.live] == [k + e for k, e in zip(known, expected, strict=True)]


@BOTH
def test_the_last_session_that_runs_is_refused_clearly_if_others_hold_the_pool(small_model, rung):
    """Hazard 10: nobody is left to preempt: an error, and not a byte changed, until somebody frees."""
    driver = Driver(small_model, rung)
    scheduler, session = OnlineScheduler(driver.engine), driver.session([7] * BS, 3)
    scheduler.submit(session)
    scheduler.step()
    hog = driver.kv.allocate(driver.kv.num_available() * BS)
    driver.live = [session]
    before = driver.snapshot()[1]
    with pytest.raises(KVCacheExhausted, match="free or preempt one"):
        scheduler.step()
    assert driver.snapshot()[1] == before
    driver.kv.free(hog)
    while scheduler.has_work:
        scheduler.step()
        driver.check()
    assert len(session.completion_ids) == 3


def prefilled(driver, prompt):
    """A session with its first token, and how many of its tokens were a hit."""
    session = driver.session(prompt)
    driver.engine.reserve(session)
    hit = session.num_cached_tokens
    driver.engine.take_tokens([session], driver.engine.prefill([session]))
    driver.live.append(session)
    driver.check()
    return session, hit


def assert_right(hf, driver, *sessions):
    """Four decode steps: greedy tokens as `transformers` makes them, over K and V as it computes them."""
    for _ in range(4):
        driver.step(*sessions)
    expected = hf_greedy(hf, [s.prompt_ids for s in sessions], 5)
    assert [s.completion_ids for s in sessions] == expected
    for session in sessions:
        assert_holds_its_own(hf, driver.kv, session)


@BOTH
def test_a_hit_of_the_whole_prompt_computes_one_token_at_least(small_pair, rung):
    """Hazard 13: a prompt of three blocks, all known: the same logits as cold, while the first one runs and after."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=True)
    (prompt,) = prompts_of([3 * BS], 211)
    cold_session = driver.session(prompt)
    cold = driver.engine.prefill([cold_session])
    driver.engine.take_tokens([cold_session], cold)
    for _ in range(2):
        session = driver.session(prompt)
        driver.engine.reserve(session)
        assert session.num_cached_tokens == 2 * BS
        torch.testing.assert_close(driver.engine.prefill([session]), cold, atol=1e-4, rtol=1e-4)
        driver.engine.take_tokens([session], cold)
        driver.live = [session, *([cold_session] if cold_session.block_ids_per_layer else [])]
        driver.check()
        assert_right(hf, driver, session)
        driver.free(*driver.live)


@BOTH
def test_colliding_keys_compare_the_tokens(small_pair, monkeypatch, rung):
    """Hazard 15: with one hash for all, the wrong block is never used, and the right one is still found."""
    hf, model = small_pair

    class Colliding(prefix_cache_module.PrefixKey):
        def __hash__(self):
            return 1

    monkeypatch.setattr(prefix_cache_module, "PrefixKey", Colliding)
    driver = Driver(model, rung, prefix_cache=True)
    a, b = prompts_of([3 * BS, 3 * BS], 211)
    mixed = [[*a[:BS], *b[BS:]], [*b[:BS], *a[BS:]], [*a[: 2 * BS], *b[:BS]]]
    found = [prefilled(driver, prompt) for prompt in (a, b, *mixed, a)]
    assert [hit for _, hit in found] == [0, 0, BS, BS, 2 * BS, 2 * BS]
    assert_right(hf, driver, *(session for session, _ in found))
