"""Models: the shipped one, loading, refusing, and the forward against `transformers`."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel, MistralConfig

from rosecourse import EngineConfig, InferenceEngine, ModelError, SamplingParams, load_model, random_model
from rosecourse.models import load
from rosecourse.models.load import SHIPPED_MODEL, from_transformers, resolve_device, resolve_dtype
from tests.support.oracles import hf_next_logits, hf_random_gpt2, prompts_of


def prefill_logits(model, prompt, **config):
    engine = InferenceEngine(model, EngineConfig(**config))
    return engine.prefill([engine.new_session(prompt, SamplingParams(max_new_tokens=1))])[0]


def test_the_shipped_model_is_small():
    sizes = {path.name: path.stat().st_size for path in SHIPPED_MODEL.iterdir()}
    assert sum(sizes.values()) <= 8_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(sizes)


@pytest.mark.parametrize("length", [1, 63, 64, 65, 300])
def test_logits_equal_transformers(model, hf_model, length):
    (prompt,) = prompts_of([length], model.shape.vocab_size)
    torch.testing.assert_close(prefill_logits(model, prompt), hf_next_logits(hf_model, prompt), atol=1e-4, rtol=1e-4)


def test_it_loads_from_a_folder_with_or_without_the_weights_prefix(tmp_path, model):
    hf = GPT2LMHeadModel.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    hf.transformer.save_pretrained(tmp_path)  # as the hub's `gpt2` is: no `transformer.` before the names
    AutoTokenizer.from_pretrained(SHIPPED_MODEL).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["architectures"] = ["GPT2LMHeadModel"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    copy = load_model(tmp_path, device="cpu")
    assert torch.equal(prefill_logits(copy, [5, 6, 7]), prefill_logits(model, [5, 6, 7]))


def test_dtypes(model):
    assert model.dtype == torch.float32
    half = load_model(dtype="bfloat16", device="cpu")
    assert half.dtype == half.layers[0].attn_c_attn.weight.dtype == torch.bfloat16
    logits = prefill_logits(half, model.tokenizer.encode("It is a truth universally acknowledged"))
    exact = prefill_logits(model, model.tokenizer.encode("It is a truth universally acknowledged"))
    assert logits.dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(logits.float(), exact, dim=0) > 0.99
    assert resolve_dtype(None, torch.device("cuda")) == torch.float16
    assert resolve_dtype(None, torch.device("cpu")) == torch.float32


def test_a_random_model_is_the_same_for_a_seed(monkeypatch):
    gpt2 = load.RANDOM_SHAPES["gpt2"]
    assert sum(torch.Size(size).numel() for size in gpt2.parameters().values()) == 124_439_808
    monkeypatch.setitem(load.RANDOM_SHAPES, "gpt2", replace(gpt2, num_layers=1, vocab_size=500))
    logits = [prefill_logits(random_model("gpt2", seed=seed, device="cpu"), [1, 2, 3]) for seed in (1, 1, 2)]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_folders_that_hold_no_model(tmp_path):
    (tmp_path / "empty").mkdir()
    MistralConfig(num_hidden_layers=1).save_pretrained(tmp_path / "mistral")
    for name, message in (
        ("absent", "there is no model folder"),
        ("empty", "holds no model"),
        ("mistral", "is a 'mistral' model: the engine runs only 'gpt2'"),
    ):
        with pytest.raises(ModelError, match=message) as caught:
            load_model(tmp_path / name, device="cpu")
        assert "\n" not in str(caught.value)


def test_a_tilde_is_the_home(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED_MODEL, tmp_path / "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_model("~/tiny", device="cpu").name == "tiny"
    with pytest.raises(ModelError, match=f"there is no model folder '{tmp_path}/none'"):
        load_model("~/none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "relu"}, "activation 'relu'"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "has scale_attn_by_inverse_layer_idx True: the engine has only plain",
        ),
        ({"n_inner": 7}, "n_inner 7"),
    ],
)
def test_variants_that_the_engine_lacks_are_refused(change, message, model):
    hf = hf_random_gpt2()
    for name, value in change.items():
        setattr(hf.config, name, value)
    with pytest.raises(ModelError, match=message):
        from_transformers(hf, model.tokenizer)


def test_a_hub_id_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"'someone/nothing' cannot be fetched \(a hub id needs the network once\)"):
        load_model("someone/nothing")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_asked_for_and_absent():
    with pytest.raises(ModelError, match="there is no 'cuda' on this machine: as the device give 'cpu'"):
        load_model(device="cuda")
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_model(device="tpu"), "no device is called 'tpu'"),
        (lambda: load_model(device="meta"), "does not run on 'meta'"),
        (lambda: load_model(device="cpu", dtype="float64"), "does not compute in 'float64'"),
        (lambda: load_model(device="cpu", dtype=torch.int8), "does not compute in torch.int8"),
        (lambda: random_model("gpt5"), "no random model is called 'gpt5'"),
        (lambda: random_model("gpt2", seed=2**64), "seed is 18446744073709551616"),
        (lambda: load_model(SHIPPED_MODEL / "config.json"), "is a file: give the folder"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ModelError, match=message):
        call()
