"""`transformers` generate as a rival: with a cache that grows, and with one of a fixed size."""

import pytest
import torch

from rosecourse import InferenceEngine, SamplingParams, lesson
from rosecourse.measure.rivals import as_transformers, time_pairs, transformers_completions
from tests.support.commands import benchmark_transformers

PROMPTS = [[1, 2, 3], [4, 5, 6]]
PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)


def test_a_static_cache_gives_the_same_tokens(small_model, monkeypatch):
    theirs = as_transformers(small_model)
    caches = []
    forward = theirs.forward
    monkeypatch.setattr(
        theirs, "forward", lambda **given: caches.append(type(given["past_key_values"]).__name__) or forward(**given)
    )
    expected = transformers_completions(theirs, PROMPTS, 6)
    assert set(caches) == {"DynamicCache"}
    caches.clear()
    assert transformers_completions(theirs, PROMPTS, 6, static_cache=True) == expected
    assert set(caches) == {"StaticCache"}


@pytest.mark.parametrize("static_cache", [False, True])
def test_both_make_the_same_tokens_in_turns(small_model, static_cache):
    engine = InferenceEngine(small_model, parts=lesson("061").after)
    theirs, ours, same_tokens = time_pairs(engine, PROMPTS, PARAMS, 2, static_cache)
    assert same_tokens
    assert len(theirs) == len(ours) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, for which transformers compiles its forward")
def test_it_is_compiled_for_a_gpu(capsys):
    flags = ["--device", "cuda", "--dtype", "float32", "--static-cache"]
    assert benchmark_transformers.main([*flags, "--batch-size", "2", "--max-new-tokens", "8", "--pairs", "2"]) == 0
    assert "Same tokens: " in capsys.readouterr().out
