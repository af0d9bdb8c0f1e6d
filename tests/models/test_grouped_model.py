"""A whole model with grouped heads: the engine's greedy tokens are those of a plain forward over the full sequence."""

from functools import cache

import pytest
import torch

from rosecourse import BEST, LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode import DecodeForward
from rosecourse.kernels import ReferenceAttention, TritonAttention
from rosecourse.lessons.dense import DecodeForward as DenseForward
from rosecourse.measure.floor import bytes_per_run, kv_bytes_per_position
from rosecourse.measure.workload import Workload, run_scheduler
from rosecourse.models.shape import require_model
from tests.support.grouped_model import GroupedModel, GroupedShape, full_greedy, full_logits
from tests.support.oracles import prompts_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
SHAPES = {1: GroupedShape(2, 2), 2: GroupedShape(6, 3), 3: GroupedShape(6, 2, 8), 4: GroupedShape(4, 1, 7)}


class ReferenceForward(DecodeForward):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.paged_attention = ReferenceAttention(kv)


def with_triton(parts):
    """The same parts, with attention by the kernel."""

    class TritonForward(parts.forward):
        def __init__(self, model, kv, config):
            super().__init__(model, kv, config)
            self.paged_attention = TritonAttention(kv)

    return parts.with_(forward=TritonForward)


PARTS = {rung.number: rung.after for rung in LESSONS} | {
    "dense": lesson("061").after.with_(forward=DenseForward),
    "reference": BEST.with_(forward=ReferenceForward),
}
LENGTHS = [1, 3, 4, 5, 8, 8, 17]


@pytest.fixture(scope="module")
def grouped(model):
    """The model with groups of a size, and what it says to the prompts; each made once."""

    @cache
    def of(group):
        made = GroupedModel(SHAPES[group], model.tokenizer, DEVICE, seed=group)
        prompts = prompts_of(LENGTHS, made.shape.vocab_size, seed=group)
        return made, prompts, [full_greedy(made, prompt, 12) for prompt in prompts]

    return of


def completions(model, prompts, max_new_tokens, parts=BEST, **config):
    engine = InferenceEngine(model, EngineConfig(**config), parts)
    params = SamplingParams(max_new_tokens=max_new_tokens, stop_on_eos=False)
    token_ids = [result.token_ids for result in engine.generate(prompts, params)]
    engine.audit([])
    return token_ids


def test_the_oracle_tells_groups_apart(grouped):
    """Its tokens depend on the whole prompt, on every head of K and V, and on which of them a query head reads."""
    model, prompts, expected = grouped(2)
    assert len({tuple(tokens) for tokens in expected}) == len(prompts)
    logits = full_logits(model, prompts[-1])
    assert not torch.allclose(full_logits(model, [prompts[-1][0] % 100 + 1, *prompts[-1][1:]]), logits)
    D = model.shape.head_dim
    for columns in [slice(0, D), slice(D, 2 * D), slice(-D, None)]:
        other = GroupedModel(model.shape, None, DEVICE, seed=2)
        other.weights["h.1.kv"][:, columns] *= 1.5
        assert not torch.allclose(full_logits(other, prompts[-1]), logits)
    swapped = GroupedModel(model.shape, None, DEVICE, seed=2)
    kv = swapped.weights["h.0.kv"].view(-1, 2, 3, D)
    kv.copy_(kv.flip(2))
    assert not torch.allclose(full_logits(swapped, prompts[-1]), logits)


@pytest.mark.parametrize(("group", "block_size"), [(1, 4), (2, 1), (3, 64), (4, 4)])
@pytest.mark.parametrize("parts", PARTS)
def test_greedy_tokens_of_every_rung(grouped, parts, block_size, group):
    model, prompts, expected = grouped(group)
    assert completions(model, prompts, 12, PARTS[parts], block_size=block_size, max_batch_size=7) == expected


@pytest.mark.parametrize(("group", "number"), [(1, "061"), (1, "best"), (3, "best")])
def test_greedy_tokens_by_the_triton_kernels(grouped, group, number):
    """Attention and the kernels of the append: two at 061, one by the table; on a CPU through the interpreter."""
    model, prompts, expected = grouped(group)
    config = {"block_size": 4, "max_batch_size": 3, "triton_kv_append_min_batch": 1}
    parts = with_triton(lesson(number).after)
    for few in (slice(1, 4), slice(4, 6)):  # mixed positions, and equal ones
        assert completions(model, prompts[few], 6, parts, **config) == [tokens[:6] for tokens in expected[few]]


def test_the_cache_and_the_floor_count_k_and_v_heads(grouped):
    """6 query heads over 3 of K and V, of 5 numbers, in 2 layers; 4 bytes a number."""
    model, _, _ = grouped(2)
    require_model(model)
    engine = InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=2, max_seq_len=16))
    assert engine.kv.k_layers[0].shape == engine.kv.v_layers[1].shape == (8 + engine.kv.spare_blocks, 3, 4, 5)
    assert kv_bytes_per_position(model.shape, torch.float32) == 4 * 2 * 2 * 3 * 5
    weights = sum(weight.numel() for name, weight in model.weights.items() if name != "wpe.weight")
    prompts = (tuple(range(1, 11)), tuple(range(1, 6)))
    workload = Workload.of(prompts, SamplingParams(max_new_tokens=2, stop_on_eos=False))  # two tokens take one step
    assert bytes_per_run(model, workload, run_scheduler(engine, workload)) == 4 * weights + 15 * 4 * 2 * 2 * 3 * 5
