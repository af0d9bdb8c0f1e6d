"""Hazards of shared prefixes: hits on what is not there yet, not there any more, or something else."""

import pytest
import torch

from rosecourse import KVCacheExhausted
from rosecourse.kv import prefix_cache as prefix_cache_module
from tests.support.hazards import BS, Driver, assert_holds_its_own, each_rung
from tests.support.oracles import hf_greedy, prompts_of

pytestmark = pytest.mark.grid


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


@each_rung
def test_identical_prompts_in_one_batch_do_not_hit_what_is_not_computed(small_pair, rung):
    """Hazard 12: the batch computes each by itself; the next batch hits."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=True)
    (prompt,) = prompts_of([3 * BS + 1], 211)
    first = driver.start(prompt, prompt, prompt)
    blocks = [i for session in first for i in driver.layout.lists(session.table)[0]]
    assert len(set(blocks)) == len(blocks) == 12
    second = [driver.session(prompt) for _ in range(2)]
    for session in second:
        driver.engine.reserve(session)
    assert [session.num_cached_tokens for session in second] == [3 * BS, 3 * BS]
    driver.engine.take_tokens(second, driver.engine.prefill(second))
    driver.live += second
    driver.check()
    assert_right(hf, driver, *first, *second)


@each_rung
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_hit_of_the_whole_prompt_computes_one_token_at_least(small_pair, rung, blocks):
    """Hazard 13: a prompt of k * BS tokens, all known: the same logits as cold, while the first one runs and after."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=True)
    (prompt,) = prompts_of([blocks * BS], 211)
    cold_session = driver.session(prompt)
    cold = driver.engine.prefill([cold_session])
    driver.engine.take_tokens([cold_session], cold)
    for _ in range(2):
        session = driver.session(prompt)
        driver.engine.reserve(session)
        assert session.num_cached_tokens == (blocks - 1) * BS
        torch.testing.assert_close(driver.engine.prefill([session]), cold, atol=1e-4, rtol=1e-4)
        driver.engine.take_tokens([session], cold)
        driver.live = [session, *([cold_session] if cold_session.block_ids_per_layer else [])]
        driver.check()
        assert_right(hf, driver, session)
        driver.free(*driver.live)


@each_rung
def test_a_hit_is_not_evicted_by_the_allocation_that_uses_it(small_pair, rung):
    """Hazard 14: the oldest idle blocks are those that the new prompt hits; room is made of the others."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=True, num_blocks=5)
    a, b = prompts_of([2 * BS + 1, 2 * BS + 1], 211)
    for prompt in (a, b):  # a is the older
        driver.free(prefilled(driver, prompt)[0])
    known = driver.engine.prefix_cache.lookup
    session, hit = prefilled(driver, [*a, *b[:BS]])  # 4 blocks: 2 of a, the free one, and 1 of b
    assert (hit, len(known(b))) == (2 * BS, 1)
    assert_right(hf, driver, session)  # which takes a fifth
    assert (len(known(a)), len(known(b))) == (2, 0)


@each_rung
def test_a_recycled_block_is_not_hit_by_its_old_key_and_a_held_one_is_never_evicted(small_pair, rung):
    """Hazard 14: prompts take each other's blocks in turn, beside one that keeps its own."""
    hf, model = small_pair
    driver = Driver(model, rung, prefix_cache=True, num_blocks=7)
    kept_prompt, *others = prompts_of([BS + 1, 3 * BS + 1, 3 * BS + 1], 211)
    kept, _ = prefilled(driver, kept_prompt)
    own = driver.layout.lists(kept.table)
    for prompt in others * 2:
        known = driver.engine.prefix_cache.entries()
        with pytest.raises(KVCacheExhausted):
            driver.kv.allocate(5 * BS + 1)  # it does not fit beside the kept one, and evicts nothing
        assert driver.engine.prefix_cache.entries() == known
        session, hit = prefilled(driver, prompt)
        assert hit == 0
        assert_right(hf, driver, session)
        driver.free(session)
        assert driver.layout.lists(kept.table) == own
    assert_right(hf, driver, kept)


@each_rung
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
