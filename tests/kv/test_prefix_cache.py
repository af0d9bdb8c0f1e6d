"""The prefix cache: hits, eviction, and what must never be a hit; with lists for each layer, and with one for all."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, LogitsError, OnlineScheduler, SamplingParams, lesson
from tests.support.layouts import layout_of
from tests.support.oracles import hf_next_logits, prompts_of

BS = 8


@pytest.fixture(params=["061", "065"])
def make_engine(request, small_model):
    """Makes engines over either cache: with lists for each layer, or one table for all."""
    parts = lesson(request.param).after
    return lambda blocks: InferenceEngine(small_model, EngineConfig(BS, max_batch_size=4, num_blocks=blocks), parts)


def computed(engine, prompt):
    """Prefill one prompt; returns (session, tokens that were a hit, logits)."""
    session = engine.new_session(prompt, SamplingParams(max_new_tokens=1))
    engine.reserve(session)
    hit = session.num_cached_tokens
    return session, hit, engine.prefill([session])[0]


def prefilled(engine, prompt):
    """The same, and the session takes its token, so that the cache learns of the prompt."""
    session, hit, logits = computed(engine, prompt)
    engine.take_tokens([session], logits[None])
    return session, hit, logits


def first_layer(engine, session):
    """The blocks of a session in the first layer."""
    return layout_of(engine.kv).lists(session.table)[0]


def check(engine, *sessions):
    engine.kv.audit([s.table for s in sessions], engine.prefix_cache.entries())


@pytest.mark.parametrize("length", [1, BS, BS + 1, 3 * BS])
def test_a_second_prompt_hits_and_leaves_one_token_to_compute(make_engine, small_pair, length):
    engine, (prompt,) = make_engine(16), prompts_of([length], 211, seed=5)
    cold, hit, _ = prefilled(engine, prompt)
    assert hit == 0
    warm, hit, logits = prefilled(engine, prompt)
    assert hit == (length - 1) // BS * BS
    torch.testing.assert_close(logits, hf_next_logits(small_pair[0], prompt), atol=1e-4, rtol=1e-4)
    check(engine, cold, warm)
    assert first_layer(engine, cold)[: hit // BS] == first_layer(engine, warm)[: hit // BS]


def test_eviction_takes_the_least_recently_used_free_block(make_engine):
    engine = make_engine(6)
    a, b, c = prompts_of([2 * BS, 2 * BS, 2 * BS], 211, seed=1)
    held, _, _ = prefilled(engine, a)
    for prompt in (b, c):
        engine.free(prefilled(engine, prompt)[0])
    check(engine, held)
    assert engine.kv.num_available() == 4
    engine.kv.free(engine.kv.allocate(2 * BS, engine.prefix_cache.lookup([*b, 1])))  # now c is the least recently used
    new, hit, _ = prefilled(engine, prompts_of([2 * BS], 211, seed=2)[0])
    assert hit == 0
    check(engine, held, new)
    assert [len(engine.prefix_cache.lookup([*each, 1])) for each in (a, b, c)] == [2, 2, 0]


def test_children_are_evicted_before_their_parents(make_engine):
    engine = make_engine(4)
    (prompt,) = prompts_of([4 * BS - 1], 211)
    engine.free(prefilled(engine, prompt)[0])
    for kept in (3, 2, 1):
        engine.kv.free(engine.kv.allocate((4 - kept + 1) * BS))
        check(engine)
        assert len(engine.prefix_cache.lookup([*prompt, 1])) == kept - 1


def test_blocks_of_nan_are_not_hit(make_engine, small_pair):
    """The K and V of one session are NaN: who comes with the same prompt later computes it by itself."""
    engine, (prompt, other) = make_engine(16), prompts_of([3 * BS, 2 * BS], 211, seed=5)
    ill, _, _ = computed(engine, prompt)
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


@pytest.mark.parametrize("number", ["066", "071"])
def test_a_scheduler_forgets_known_blocks_that_gave_nan(small_model, number):
    """With 071 the host reads of it one step late: the blocks are forgotten then."""
    engine, prompt = (
        InferenceEngine(small_model, EngineConfig(block_size=BS), lesson(number).after),
        [*range(2 * BS + 1)],
    )

    def request():
        scheduler, session = OnlineScheduler(engine), engine.new_session(prompt, SamplingParams(3, stop_on_eos=False))
        scheduler.submit(session)
        scheduler.run()
        return session.finish_reason, session.completion_ids

    right = request()
    engine.kv.keys[:] = torch.nan
    assert request()[0] == "error"
    assert request() == right
