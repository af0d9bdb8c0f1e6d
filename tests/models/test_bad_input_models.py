"""Damaged model folders: each is refused in one line that names it and the remedy; nothing in one is ever run."""

import json
import os
import pickle
import shutil
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rosecourse import InferenceEngine, ModelError, SamplingParams, load_model
from rosecourse.models.load import SHIPPED_MODEL

WEIGHTS = (SHIPPED_MODEL / "model.safetensors").read_bytes()
HEADER_LENGTH = struct.unpack("<Q", WEIGHTS[:8])[0]
HEADER = json.loads(WEIGHTS[8 : 8 + HEADER_LENGTH])
SCALE, SHIFT, EMBEDDING = (f"transformer.{name}" for name in ("h.0.ln_1.weight", "h.0.ln_1.bias", "wte.weight"))
JSON_FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]


@pytest.fixture
def folder(tmp_path):
    """A whole model folder of one's own."""
    return shutil.copytree(SHIPPED_MODEL, tmp_path / "model")


def refused(folder, *messages):
    with pytest.raises(ModelError) as caught:
        load_model(folder, device="cpu")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    for message in (str(folder.name), *messages):
        assert message in text


def loads(folder):
    engine = InferenceEngine(load_model(folder, device="cpu"))
    (done,) = engine.generate("Hello", SamplingParams(max_new_tokens=2))
    return done.token_ids


def change_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# -- weights ------------------------------------------------------------------------------------------------------


def with_header(change):
    """The shipped weights under another header."""
    header = json.loads(json.dumps(HEADER))
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + WEIGHTS[8 + HEADER_LENGTH :]


BROKEN = {
    "longer": WEIGHTS + b"x",
    "a huge header": struct.pack("<Q", 2**63) + WEIGHTS[8:],
    "a header of bytes": WEIGHTS[:8] + b"\xff" * HEADER_LENGTH + WEIGHTS[8 + HEADER_LENGTH :],
    "overlapping": with_header(lambda h: h[SCALE].update(data_offsets=h[SHIFT]["data_offsets"])),
    "a wrong size": with_header(lambda h: h[SCALE].update(shape=[64])),
    "a huge size": with_header(lambda h: h[SCALE].update(shape=[2**62, 2**62])),
    "an unknown type": with_header(lambda h: h[SCALE].update(dtype="Q99")),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_damaged_weights_file(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    refused(folder, "model.safetensors' cannot be read", "get the folder anew")


def test_weights_cut_anywhere(tmp_path):
    """Every cut is refused by the header alone: no half of a model is ever loaded."""
    folder = shutil.copytree(SHIPPED_MODEL, tmp_path / "model")
    edges = [0, 1, 7, 8, 9, 8 + HEADER_LENGTH - 1, 8 + HEADER_LENGTH, 8 + HEADER_LENGTH + 1, len(WEIGHTS) - 1]

    @settings(max_examples=25, deadline=None)
    @given(st.sampled_from(edges) | st.integers(0, len(WEIGHTS) - 1))
    def cut(length):
        (folder / "model.safetensors").write_bytes(WEIGHTS[:length])
        refused(folder, "model.safetensors' cannot be read")

    cut()


def rewritten(folder, change):
    """The folder's weights after a change of the tensors by name."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(SCALE), "no weights for 'h.0.ln_1.weight'"),
        (lambda w: w.update(more=torch.zeros(3)), "'more' is no weight of this model"),
        (lambda w: w.update({SCALE.replace("h.0", "h.6"): torch.zeros(128)}), "'h.6.ln_1.weight' is no weight"),
        (lambda w: w.update({SCALE: torch.ones(129)}), "'h.0.ln_1.weight' is [129], by config.json it is [128]"),
        (lambda w: w.update({SCALE: w[SCALE].int()}), "'h.0.ln_1.weight' is of type I32"),
        # NaN is refused when it is read, not when the first logits are NaN: the folder is known then.
        (lambda w: w[SCALE].__setitem__(3, float("nan")), "weights of 'h.0.ln_1.weight' are NaN or infinite"),
        (lambda w: w[SCALE].__setitem__(3, -float("inf")), "weights of 'h.0.ln_1.weight' are NaN or infinite"),
    ],
)
def test_weights_that_are_not_this_models(folder, change, message):
    rewritten(folder, change)
    refused(folder, message, "get the folder anew")


def test_what_a_weights_file_may_have(folder):
    """Another float type, the causal masks of old files, and the output projection, which is the embedding."""
    expected = loads(folder)
    rewritten(
        folder,
        lambda w: w.update(
            {
                SCALE: w[SCALE].double(),
                SCALE.replace("ln_1.weight", "attn.bias"): torch.ones(1, 1, 4, 4).tril(),
                "lm_head.weight": w[EMBEDDING].clone(),
            }
        ),
    )
    assert loads(folder) == expected


def test_weights_that_do_not_fit_into_float16_are_named(folder):
    rewritten(folder, lambda w: w[SCALE].__setitem__(3, 1e6))
    with pytest.raises(ModelError, match=r"weights of 'h.0.ln_1.weight' do not fit into torch.float16: load it in"):
        load_model(folder, dtype="float16", device="cpu")


# -- JSON ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json_object(folder, name, content):
    (folder / name).write_bytes(content)
    refused(folder, f"{name}' cannot be read: ", "get the folder anew")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_layer": 10**9}, "config.json says 1000000000 layers, the files have fewer"),
        ({"n_layer": 5}, "'h.5.attn.c_attn.bias' is no weight of this model"),
        ({"n_layer": "6"}, "'n_layer' expected int, got str (value: '6')"),
        ({"n_head": 0}, "num_heads 0"),
        ({"n_head": 5}, "width 128 cannot have 5 heads"),
        ({"n_embd": None}, "'n_embd' expected int, got NoneType"),
        ({"n_positions": 10**12}, "by config.json it is [1000000000000, 128]"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_eps inf"),
        ({"model_type": "nothing"}, "is a 'nothing' model: the engine runs only 'gpt2'"),
        ({"model_type": ["gpt2"]}, "config.json' cannot be read: it names no model_type"),
        ({"quantization_config": {"quant_method": "gptq"}}, "has quantization_config {'quant_method': 'gptq'}"),
    ],
)
def test_a_config_that_cannot_be(folder, change, message):
    change_json(folder / "config.json", **change)
    refused(folder, message)


def test_a_tokenizer_of_another_model(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    first = len(tokenizer["model"]["vocab"])
    tokenizer["model"]["vocab"] |= {f"more{n}": first + n for n in range(10)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(folder, "the tokenizer in", "tokens, the model 4096: it is of another model")


def test_a_tokenizer_may_have_fewer_tokens_than_a_padded_model(folder):
    change_json(folder / "config.json", vocab_size=4160)
    rewritten(folder, lambda w: w.update({EMBEDDING: torch.cat([w[EMBEDDING], torch.zeros(64, 128)])}))
    model = load_model(folder, device="cpu")
    assert len(model.tokenizer) < model.shape.vocab_size
    engine = InferenceEngine(model)
    assert [token.token_id for token in engine.stream([4159, 1], SamplingParams(max_new_tokens=2))]


# -- nothing in a folder is run -----------------------------------------------------------------------------------


class Bomb:
    """A pickle that makes a folder when it is opened."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_beside_the_weights_or_instead_of_them_is_never_opened(folder, tmp_path):
    struck = tmp_path / "struck"
    names = ["pytorch_model.bin", "model.bin", "training_args.bin", "vocab.pkl", "tokenizer.pkl"]
    for name in names:
        (folder / name).write_bytes(pickle.dumps(Bomb(struck)))
    assert loads(folder)
    (folder / "model.safetensors").unlink()
    refused(folder, "it has no model.safetensors, and the engine opens no pickle", "write the model with")
    for listed in ("pytorch_model.bin", "../model/x.safetensors"):
        index = {"weight_map": dict.fromkeys([SCALE, SHIFT], listed)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        refused(folder, f"names {listed!r}, no safetensors file beside it")
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb(struck)))
    refused(folder, "model.safetensors' cannot be read")
    assert not struck.exists()
    pickle.loads((folder / "pytorch_model.bin").read_bytes())
    assert struck.exists()  # so it would have struck


def test_code_that_a_folder_brings_is_not_run_and_not_asked_about(folder, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("asked")

    monkeypatch.setattr("builtins.input", never)
    struck = tmp_path / "struck"
    classes = "".join(f"class {name}: pass\n" for name in "CMT")
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(struck)!r})\n{classes}")
    auto = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    change_json(folder / "config.json", auto_map=auto)
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", "evil.T"]})
    assert loads(folder)  # with the classes of transformers itself
    change_json(folder / "config.json", model_type="evil")
    refused(folder, "is a 'evil' model: the engine runs only 'gpt2'")
    assert not struck.exists()
