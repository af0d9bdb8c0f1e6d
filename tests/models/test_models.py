"""The shipped model, random ones, and what is asked for: names, devices, dtypes."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from rosecourse import EngineConfig, InferenceEngine, ModelError, SamplingParams, load_model, random_model
from rosecourse.models import load
from rosecourse.models.load import SHIPPED_MODEL, resolve_dtype
from tests.support.oracles import hf_next_logits, prompts_of


def prefill_logits(model, prompt, **config):
    engine = InferenceEngine(model, EngineConfig(**config))
    return engine.prefill([engine.new_session(prompt, SamplingParams(max_new_tokens=1))])[0]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 300])
def test_logits_equal_transformers(model, hf_model, length):
    (prompt,) = prompts_of([length], model.shape.vocab_size)
    torch.testing.assert_close(prefill_logits(model, prompt), hf_next_logits(hf_model, prompt), atol=1e-4, rtol=1e-4)


def test_weights_may_lack_the_prefix_of_their_names(tmp_path, model, monkeypatch):
    """As in the hub's `gpt2`: no `transformer.` before the names. A path may begin at the home."""
    hf = GPT2LMHeadModel.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    hf.transformer.save_pretrained(tmp_path / "bare")
    AutoTokenizer.from_pretrained(SHIPPED_MODEL).save_pretrained(tmp_path / "bare")
    monkeypatch.setenv("HOME", str(tmp_path))
    copy = load_model("~/bare", device="cpu")
    assert copy.name == "bare"
    assert torch.equal(prefill_logits(copy, [5, 6, 7]), prefill_logits(model, [5, 6, 7]))


def test_a_model_computes_in_the_dtype_asked_for(model):
    half = load_model(dtype="bfloat16", device="cpu")
    assert (model.dtype, half.dtype) == (torch.float32, torch.bfloat16)
    prompt = model.tokenizer.encode("It is a truth universally acknowledged")
    logits, exact = prefill_logits(half, prompt), prefill_logits(model, prompt)
    assert logits.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(logits.float(), exact, dim=0) > 0.99
    assert resolve_dtype(None, torch.device("cuda")) == torch.float16
    assert resolve_dtype(None, torch.device("cpu")) == torch.float32


def test_a_random_model_is_the_same_for_a_seed(monkeypatch):
    gpt2 = load.RANDOM_SHAPES["gpt2"]
    monkeypatch.setitem(load.RANDOM_SHAPES, "gpt2", replace(gpt2, num_layers=1, vocab_size=500))
    logits = [prefill_logits(random_model("gpt2", seed=seed, device="cpu"), [1, 2, 3]) for seed in (1, 1, 2)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


MISUSES = [
    (lambda folder: load_model(device="tpu"), "no device is called 'tpu'"),
    (lambda folder: load_model(device="cuda:99"), "there is no 'cuda:99' on this machine: as the device give 'cpu'"),
    (lambda folder: load_model(device="meta"), "no device is called 'meta'"),
    (lambda folder: load_model(device="cpu", dtype="float64"), "does not compute in 'float64'"),
    (lambda folder: load_model(device="cpu", dtype=torch.int8), "does not compute in torch.int8"),
    (lambda folder: random_model("gpt5"), "no random model is called 'gpt5'"),
    (lambda folder: random_model("gpt2", seed=2**63), "seed is 9223372036854775808"),
    (lambda folder: load_model(SHIPPED_MODEL / "config.json"), "is a file: give the folder"),
    (lambda folder: load_model(folder / "none"), "there is no model folder"),
    (lambda folder: load_model("./none"), "there is no model folder './none'"),
    (lambda folder: load_model("a/b/c"), "there is no model folder 'a/b/c'"),
    (lambda folder: load_model(folder), "holds no model"),
    (lambda folder: load_model("x" * 4097), "there is no model folder"),
    (lambda folder: load_model("a\0b"), "there is no model folder"),
]


@pytest.mark.parametrize(("call", "words"), MISUSES, ids=[words for _, words in MISUSES])
def test_a_model_that_is_not_there_is_named(call, words, tmp_path):
    with pytest.raises(ModelError, match=words) as caught:
        call(tmp_path)
    assert "\n" not in str(caught.value)
