"""Same tokens: greedy decoding equals `transformers` generate, token for token."""

import pytest

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams
from tests.support.hazards import RUNGS
from tests.support.oracles import hf_greedy, hf_next_logits, hf_random_gpt2, prompts_of
from tests.support.small_models import from_transformers


def assert_same_tokens(hf, model, config, prompts, new, parts=BEST):
    engine = InferenceEngine(model, EngineConfig(**config), parts)
    params = [SamplingParams(max_new_tokens=n, stop_on_eos=False) for n in new]
    completions = [g.token_ids for g in engine.generate(prompts, params)]
    assert [len(c) for c in completions] == new
    for prompt, ours, theirs in zip(prompts, completions, hf_greedy(hf, prompts, max(new)), strict=True):
        if ours != theirs[: len(ours)]:
            at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
            best = hf_next_logits(hf, prompt + theirs[:at]).topk(2).values
            pytest.fail(
                f"prompt of {len(prompt)}: token {at} is {ours[at]}, transformers says {theirs[at]} "
                f"(its two best logits are {float(best[0] - best[1]):.2g} apart)"
            )
    engine.audit([])


@pytest.mark.parametrize("rung", ["035", "061", "dense", "066", "071"])
def test_shipped_model_gives_the_same_tokens_in_one_batch(model, hf_model, rung):
    prompts = prompts_of([1, 5, 63, 64, 65, 127, 128, 129], model.shape.vocab_size)
    assert_same_tokens(hf_model, model, {"max_batch_size": 8}, prompts, [24] * 8, RUNGS[rung][0])


def test_shipped_model_gives_the_same_tokens_for_texts(model, hf_model):
    texts = ["It is a truth universally acknowledged, that", "Hello", "She opened the letter and"]
    assert_same_tokens(hf_model, model, {}, [model.tokenizer.encode(text) for text in texts], [100] * 3)


def test_shipped_model_gives_the_same_tokens_up_to_its_context(model, hf_model):
    context = model.shape.context
    for length, new in [(context - 1, 1), (context - 20, 20), (3, context - 3)]:
        assert_same_tokens(hf_model, model, {}, prompts_of([length], model.shape.vocab_size), [new])


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "block_size"), [(1, 8, 4), (2, 16, 16), (3, 8, 1), (4, 32, 64), (5, 12, 4)]
)
def test_random_models_give_the_same_tokens(model, num_heads, head_dim, block_size):
    hf = hf_random_gpt2(num_heads, head_dim, seed=num_heads)
    lengths = sorted({1, *(n for b in (block_size, 2 * block_size) for n in (b - 1, b, b + 1) if 0 < n <= 66)})
    prompts = prompts_of(lengths, 211, seed=block_size)
    config = {"block_size": block_size, "max_batch_size": 4}
    assert_same_tokens(
        hf, from_transformers(hf, model.tokenizer), config, prompts, [min(2 * block_size + 3, 30)] * len(lengths)
    )


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_gives_the_same_tokens_over_block_ends(small_pair, rung):
    """A batch whose members roll over at different steps, with places that are left and taken again."""
    prompts = prompts_of([3, 4, 5, 7, 8, 4, 4, 1], 211)
    parts, min_batch = RUNGS[rung]
    config = {"block_size": 4, "max_batch_size": 6, "max_seq_len": 40, "triton_kv_append_min_batch": min_batch}
    assert_same_tokens(*small_pair, config, prompts, [20, 3, 9, 20, 20, 20, 1, 20], parts)


def test_shared_prefixes_give_the_same_tokens(small_pair):
    (stem,) = prompts_of([24], 211)
    prompts = [stem, stem, [*stem, 5], [*stem[:16], 7, 8, 9], stem[:8], [*stem, 5]]
    assert_same_tokens(*small_pair, {"block_size": 8, "max_batch_size": 2}, prompts, [10] * len(prompts))
