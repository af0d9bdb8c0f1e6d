"""A whole model with grouped heads: the engine's greedy tokens are those of a plain forward over the full sequence."""

from functools import cache

import pytest
import torch

from rosecourse import LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.lessons.dense import DecodeForward as DenseForward
from tests.support.grouped_model import GroupedModel, GroupedShape, full_greedy
from tests.support.oracles import prompts_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []
SHAPES = {1: GroupedShape(2, 2), 2: GroupedShape(6, 3), 3: GroupedShape(6, 2, 8), 4: GroupedShape(4, 1, 7)}
BLOCK_SIZES = {1: 4, 2: 1, 3: 64, 4: 4}
PARTS = {rung.number: rung.after for rung in LESSONS} | {"dense": lesson("061").after.with_(forward=DenseForward)}


@pytest.fixture(scope="module")
def grouped(model):
    """The model with groups of a size, and what it says to the prompts; each made once."""

    @cache
    def of(group):
        made = GroupedModel(SHAPES[group], model.tokenizer, DEVICE, seed=group)
        prompts = prompts_of([1, 3, 4, 5, 8, 8, 17], made.shape.vocab_size, seed=group)
        expected = [full_greedy(made, prompt, 12) for prompt in prompts]
        assert len(set(map(tuple, expected))) == len(prompts)
        return made, prompts, expected

    return of


@pytest.mark.parametrize(("number", "group"), [(number, 1 + n % 4) for n, number in enumerate(PARTS)])
def test_grouped_heads_at_every_rung_give_the_tokens(grouped, number, group):
    """Each rung with one size of groups, in turns."""
    model, prompts, expected = grouped(group)
    engine = InferenceEngine(model, EngineConfig(block_size=BLOCK_SIZES[group], max_batch_size=7), PARTS[number])
    results = engine.generate(prompts, SamplingParams(max_new_tokens=12, stop_on_eos=False))
    assert [result.token_ids for result in results] == expected
    engine.audit([])
