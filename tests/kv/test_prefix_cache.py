"""The prefix cache: hits, eviction, and what must never be a hit; with lists for each layer, and with one for all."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, LogitsError, SamplingParams, lesson
from rosecourse.kv import prefix_cache as module
from tests.support.layouts import layout_of
from tests.support.oracles import hf_next_logits, prompts_of

BS = 8


@pytest.fixture(params=["061", "065"])
def parts(request):
    """The parts of a rung for each of the two caches."""
    return lesson(request.param).after


@pytest.fixture
def make_engine(small_model, parts):
    """Makes engines over either cache."""

    def make(**config):
        return InferenceEngine(small_model, EngineConfig(**{"block_size": BS, "max_batch_size": 4} | config), parts)

    return make


@pytest.fixture
def engine(make_engine):
    return make_engine(num_blocks=16)


@pytest.fixture
def prompt():
    (prompt,) = prompts_of([3 * BS], 211, seed=5)
    return prompt


def prefilled(engine, prompt, params=None):
    """Prefill one prompt, and let it take its token; returns (session, tokens that were a hit, logits)."""
    session, hit, logits = computed(engine, prompt, params)
    engine.take_tokens([session], logits[None])
    return session, hit, logits


def computed(engine, prompt, params=None):
    """The same without the token."""
    session = engine.new_session(prompt, params or SamplingParams(max_new_tokens=1))
    engine.reserve(session)
    hit = session.num_cached_tokens
    return session, hit, engine.prefill([session])[0]


def first_layer(engine, session):
    """The blocks of a session in the first layer."""
    return layout_of(engine.kv).lists(session.table)[0]


def check(engine, *sessions):
    engine.kv.audit([s.table for s in sessions], engine.prefix_cache.entries())


@pytest.mark.parametrize("length", [1, BS, BS + 1, 3 * BS])
def test_a_second_prompt_hits_and_leaves_one_token_to_compute(engine, prompt, small_pair, length):
    cold, hit, cold_logits = prefilled(engine, prompt[:length])
    assert hit == 0
    warm, hit, warm_logits = prefilled(engine, prompt[:length])
    assert hit == (length - 1) // BS * BS
    torch.testing.assert_close(warm_logits, cold_logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(warm_logits, hf_next_logits(small_pair[0], prompt[:length]), atol=1e-4, rtol=1e-4)
    check(engine, cold, warm)
    shared = hit // BS
    assert first_layer(engine, cold)[:shared] == first_layer(engine, warm)[:shared]


def test_eviction_takes_the_least_recently_used_free_block(make_engine):
    engine = make_engine(num_blocks=6)
    a, b, c = prompts_of([2 * BS, 2 * BS, 2 * BS], 211, seed=1)
    held, _, _ = prefilled(engine, a)
    for prompt in (b, c):
        session, _, _ = prefilled(engine, prompt)
        engine.free(session)
    check(engine, held)
    assert engine.kv.num_available() == 4
    engine.kv.free(engine.kv.allocate(2 * BS, engine.prefix_cache.lookup([*b, 1])))  # now c is the least recently used
    new, hit, _ = prefilled(engine, prompts_of([2 * BS], 211, seed=2)[0])
    assert hit == 0
    check(engine, held, new)
    assert len(engine.prefix_cache.lookup([*b, 1])) == 2
    assert len(engine.prefix_cache.lookup([*c, 1])) == 0
    assert len(engine.prefix_cache.lookup([*a, 1])) == 2


def test_children_are_evicted_before_their_parents(make_engine):
    engine = make_engine(num_blocks=4)
    (prompt,) = prompts_of([4 * BS - 1], 211)
    session, _, _ = prefilled(engine, prompt)
    engine.free(session)
    for kept in (3, 2, 1):
        blocks = engine.kv.allocate((4 - kept + 1) * BS)
        engine.kv.free(blocks)
        check(engine)
        assert len(engine.prefix_cache.lookup([*prompt, 1])) == kept - 1


def test_blocks_of_nan_are_not_hit(engine, prompt, small_pair):
    """The K and V of one session are NaN: who comes with the same prompt later computes it by itself."""
    ill, _, _ = computed(engine, prompt)
    (other,) = prompts_of([2 * BS], 211, seed=8)
    well, _, logits = computed(engine, other)
    assert engine.prefix_cache.entries() == []  # nobody knows yet whether these are numbers
    with pytest.raises(LogitsError):
        engine.take_tokens([well, ill], torch.tensor([[1.0], [float("nan")]]).expand(2, 211))
    engine.take_tokens([well], logits[None])
    check(engine, ill, well)
    for cache in (*engine.kv.k_layers, *engine.kv.v_layers):
        cache[first_layer(engine, ill)] = float("nan")
    engine.free(ill)
    check(engine, well)
    _, hit, logits = prefilled(engine, prompt)
    assert hit == 0
    torch.testing.assert_close(logits, hf_next_logits(small_pair[0], prompt), atol=1e-4, rtol=1e-4)
    assert prefilled(engine, other)[1] == BS


@pytest.mark.parametrize("num_layers", [1, 2])
def test_an_evicted_or_discarded_entry_leaves_nothing_behind(parts, num_layers):
    """Its blocks are other people's next: who looks them up must not find what they were."""
    sizes = {"num_layers": num_layers, "num_kv_heads": 1, "head_dim": 1, "block_size": 2, "num_blocks": 1}
    kv = parts.cache(**sizes, dtype=torch.float32, device=torch.device("cpu"))
    cache = module.PrefixCache(kv)
    first = kv.allocate(2)
    cache.insert([1, 2], first)
    kv.free(first)
    second = kv.allocate(2)  # evicts
    cache.discard(second)
    kv.audit([second])
    cache.insert([3, 4], second)
    kv.audit([second], cache.entries())
    cache.discard(second)
    kv.audit([second])
    assert cache.entries() == []
