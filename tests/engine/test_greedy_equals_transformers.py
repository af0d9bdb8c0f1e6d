"""Same tokens: greedy decoding equals `transformers` generate, token for token."""

import pytest

from rosecourse import BEST, LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.lessons.dense import DecodeForward as DenseForward
from rosecourse.models.load import from_transformers
from tests.support.oracles import hf_greedy, hf_next_logits, hf_random_gpt2, prompts_of

PARTS = {rung.number: rung.after for rung in LESSONS} | {"dense": lesson("061").after.with_(forward=DenseForward)}


def assert_same_tokens(hf, model, config, prompts, max_new_tokens, parts=BEST):
    engine = InferenceEngine(model, config, parts)
    params = [SamplingParams(max_new_tokens=n, stop_on_eos=False) for n in max_new_tokens]
    completions = [g.token_ids for g in engine.generate(prompts, params)]
    assert [len(c) for c in completions] == max_new_tokens
    for prompt, ours, theirs in zip(prompts, completions, hf_greedy(hf, prompts, max(max_new_tokens)), strict=True):
        if ours != theirs[: len(ours)]:
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            best = hf_next_logits(hf, prompt + theirs[:at]).topk(2).values
            pytest.fail(
                f"prompt of {len(prompt)}: token {at} is {ours[at]}, transformers says {theirs[at]} "
                f"(its two best logits are {float(best[0] - best[1]):.2g} apart)"
            )
    engine.kv.audit([], engine.prefix_cache.entries() if engine.prefix_cache else [])


@pytest.mark.parametrize("parts", ["035", "061", "dense", "066", "071"])
def test_shipped_model_mixed_lengths_in_one_batch(model, hf_model, parts):
    prompts = prompts_of([1, 5, 63, 64, 65, 127, 128, 129], model.shape.vocab_size)
    assert_same_tokens(hf_model, model, EngineConfig(max_batch_size=8), prompts, [24] * 8, PARTS[parts])


def test_shipped_model_real_text(model, hf_model):
    texts = ["It is a truth universally acknowledged, that", "Hello", "She opened the letter and"]
    prompts = [model.tokenizer.encode(t) for t in texts]
    assert_same_tokens(hf_model, model, EngineConfig(), prompts, [100] * 3)


def test_shipped_model_up_to_the_context_limit(model, hf_model):
    context = model.shape.context
    for length, new in [(context - 1, 1), (context - 20, 20), (3, context - 3)]:
        prompts = prompts_of([length], model.shape.vocab_size)
        assert_same_tokens(hf_model, model, EngineConfig(), prompts, [new])


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "block_size"), [(1, 8, 4), (2, 16, 16), (3, 8, 1), (4, 32, 64), (5, 12, 4)]
)
def test_random_models(model, num_heads, head_dim, block_size):
    hf = hf_random_gpt2(num_heads, head_dim, seed=num_heads)
    ours = from_transformers(hf, model.tokenizer)
    lengths = sorted({1, *(n for b in (block_size, 2 * block_size) for n in (b - 1, b, b + 1) if 0 < n <= 66)})
    prompts = prompts_of(lengths, 211, seed=block_size)
    new = [min(2 * block_size + 3, 30)] * len(lengths)
    assert_same_tokens(hf, ours, EngineConfig(block_size=block_size, max_batch_size=4), prompts, new)


@pytest.mark.parametrize("parts", PARTS)
def test_every_lesson_on_a_batch_whose_members_roll_over_at_different_steps(small_pair, parts):
    hf, model = small_pair
    prompts = prompts_of([3, 4, 5, 7, 8, 4, 4, 1], 211)
    config = EngineConfig(block_size=4, max_batch_size=8)
    assert_same_tokens(hf, model, config, prompts, [20, 3, 9, 20, 20, 20, 1, 20], PARTS[parts])


def test_shared_prefixes(small_pair):
    hf, model = small_pair
    (stem,) = prompts_of([24], 211)
    prompts = [stem, stem, [*stem, 5], [*stem[:16], 7, 8, 9], stem[:8], [*stem, 5]]
    config = EngineConfig(block_size=8, max_batch_size=2)
    assert_same_tokens(hf, model, config, prompts, [10] * len(prompts))


def test_a_small_pool_gives_the_same_tokens_by_preemption(small_pair):
    hf, model = small_pair
    prompts = prompts_of([5, 11, 7, 3], 211)
    config = EngineConfig(block_size=4, max_batch_size=4, num_blocks=13, prefix_cache=False)
    assert_same_tokens(hf, model, config, prompts, [30] * 4)
