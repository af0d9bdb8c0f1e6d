"""`transformers` generate as a rival: with a cache that grows, and with one of a fixed size."""

import pytest
import torch

from rosecourse import ConfigError, InferenceEngine, RequestFailed, SamplingParams, load_model
from rosecourse.measure.rivals import as_transformers, time_pairs
from tests.support.commands import benchmark_transformers
from tests.support.tag_model import TagModel

PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)


@pytest.mark.parametrize(("static_cache", "kind"), [(False, "DynamicCache"), (True, "StaticCache")])
def test_both_make_the_same_tokens_in_turns(small_model, monkeypatch, static_cache, kind):
    rival, caches = as_transformers(small_model), []
    forward = rival.forward
    monkeypatch.setattr("rosecourse.measure.rivals.as_transformers", lambda model: rival)
    monkeypatch.setattr(rival, "forward", lambda **given: caches.append(given["past_key_values"]) or forward(**given))
    engine = InferenceEngine(small_model)
    theirs, ours, same_tokens = time_pairs(engine, [[1, 2, 3], [4, 5, 6]], PARAMS, 2, static_cache)
    assert (len(theirs), len(ours), same_tokens) == (2, 2, True)
    assert {type(one).__name__ for one in caches} == {kind}


def test_other_tokens_in_one_run_are_told_and_fewer_refused(small_model, monkeypatch):
    """Not only those of the last run. `transformers` goes on behind the end of text: fewer tokens are less work."""
    engine = InferenceEngine(small_model)
    real, calls = engine.generate, []

    def generate(prompts, params):
        calls.append(real(prompts, params))
        calls[-1][0].token_ids[-1] += len(calls) == 2
        return calls[-1]

    monkeypatch.setattr(engine, "generate", generate)
    assert not time_pairs(engine, [[1, 2, 3]], PARAMS, pairs=3)[2]
    engine.eos_token_id = calls[0][0].token_ids[3]
    with pytest.raises(RequestFailed, match=r"request 0 gave 4 of 6 tokens \(stop\)"):
        time_pairs(engine, [[1, 2, 3]], SamplingParams(max_new_tokens=6), pairs=1)
    with pytest.raises(ConfigError, match="the model 'tags' is of no family known here"):
        as_transformers(TagModel())


def test_llama_from_folder_and_shape_makes_the_same_tokens():
    model = load_model("tiny-llama", device="cpu")
    for folder in (model.folder, None):
        model.folder = folder
        assert time_pairs(InferenceEngine(model), [[1, 2, 3]], PARAMS, 1)[2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, for which transformers compiles its forward")
def test_it_is_compiled_for_a_gpu(capsys):
    flags = ["--device", "cuda", "--dtype", "float32", "--static-cache"]
    assert benchmark_transformers.main([*flags, "--batch-size", "2", "--max-new-tokens", "8", "--pairs", "2"]) == 0
    assert "Same tokens: " in capsys.readouterr().out
