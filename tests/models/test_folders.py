"""Model folders that are damaged or odd: what is wrong is named in one line; nothing in one is ever run.

Hazard 39: no weight is read of a folder whose config lies about sizes.
"""

import json
import os
import pickle
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from rosecourse import InferenceEngine, ModelError, SamplingParams, load_model
from rosecourse.models.load import SHIPPED_MODEL

CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG, SAFETENSORS = READ = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    "model.safetensors",
)
INDEX = "model.safetensors.index.json"
BYTES = (SHIPPED_MODEL / SAFETENSORS).read_bytes()
START = 8 + struct.unpack("<Q", BYTES[:8])[0]  # of the numbers, after the header
HEADER = json.loads(BYTES[8:START])
SCALE, SHIFT, EMBEDDING = (f"transformer.{name}" for name in ("h.0.ln_1.weight", "h.0.ln_1.bias", "wte.weight"))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * b"0" + b"\nsize 548105171\n"
AUTO = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": ["evil.T", "evil.T"]}


# -- what is done to a folder: functions of it ----------------------------------------------------------------------


def content(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def fields(name, **changes):
    def change(folder):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))

    return change


def config(**changes):
    return fields(CONFIG, **changes)


def weights(change):
    """Change the tensors by name."""

    def rewrite(folder):
        tensors = load_file(folder / SAFETENSORS)
        change(tensors)
        save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})

    return rewrite


def added(**tensors):
    return weights(lambda w: w.update({name: w[like].clone() for name, like in tensors.items()}))


def header(**change):
    """The numbers of the weights under a header that says something else of one of them."""
    text = json.dumps(HEADER | {SCALE: HEADER[SCALE] | change}).encode()
    return content(SAFETENSORS, struct.pack("<Q", len(text)) + text + BYTES[START:])


def index(**files):
    """An index of these files, without the single one."""

    def change(folder):
        (folder / SAFETENSORS).rename(folder / "model-1.safetensors")
        (folder / INDEX).write_text(json.dumps({"weight_map": files}))

    return change


class Bomb:
    """A pickle that makes a folder when it is opened."""

    def __init__(self, folder):
        self.path = str(folder / "struck")

    def __reduce__(self):
        return os.mkdir, (self.path,)


def pickles(folder, names=("pytorch_model.bin", "training_args.bin", "vocab.pkl", "tokenizer.pkl")):
    for name in names:
        (folder / name).write_bytes(pickle.dumps(Bomb(folder)))


def code(folder, **more):
    """Classes of the folder's own, which a careless loader would import."""
    classes = "".join(f"class {name}: pass\n" for name in "CMT")
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(folder / 'struck')!r})\n{classes}")
    config(auto_map=AUTO, **more)(folder)
    fields(TOKENIZER_CONFIG, auto_map=AUTO)(folder)


# -- what is refused ------------------------------------------------------------------------------------------------

NOT_READABLE = "model.safetensors' cannot be read"
CUTS = [0, 1, 7, 8, 9, START - 1, START, START + 1, (START + len(BYTES)) // 2, len(BYTES) - 1]
OWN_HEAD = "has an output projection 'lm_head.weight' of its own"
NOT_FINITE = "weights of 'h.0.ln_1.weight' are NaN or infinite"
BAD = {  # what is wrong: (how, words of the error)
    # The safetensors: no half of a model is ever loaded.
    **{f"weights cut at {length}": (content(SAFETENSORS, BYTES[:length]), NOT_READABLE) for length in CUTS},
    "weights longer": (content(SAFETENSORS, BYTES + b"x"), NOT_READABLE),
    "a header of 2**63 bytes": (content(SAFETENSORS, struct.pack("<Q", 2**63) + BYTES[8:]), NOT_READABLE),
    "a header of no text": (content(SAFETENSORS, BYTES[:8] + b"\xff" * (START - 8) + BYTES[START:]), NOT_READABLE),
    "tensors that overlap": (header(data_offsets=HEADER[SHIFT]["data_offsets"]), NOT_READABLE),
    "a wrong size": (header(shape=[64]), NOT_READABLE),
    "a huge size": (header(shape=[2**62, 2**62]), NOT_READABLE),
    "an unknown type": (header(dtype="Q99"), NOT_READABLE),
    "a pointer of git-lfs": (content(SAFETENSORS, POINTER), "`git lfs pull` fetches the weights"),
    # Weights that are not this model's.
    "a weight missing": (weights(lambda w: w.pop(SCALE)), "no weights for 'h.0.ln_1.weight'"),
    "a weight too many": (added(more=SCALE), "'more' is no weight of this model"),
    "a bias of the head": (added(**{"lm_head.bias": SHIFT}), "'lm_head.bias' is no weight"),
    "much like a mask": (added(**{"h.0.mlp.attn.bias": SHIFT}), "'h.0.mlp.attn.bias' is no weight"),
    "a layer too many": (added(**{"transformer.h.6.ln_1.weight": SCALE}), "'h.6.ln_1.weight' is no weight"),
    "another shape": (weights(lambda w: w.update({SCALE: torch.ones(129)})), "is [129], by config.json it is [128]"),
    "NaN": (weights(lambda w: w[SCALE].__setitem__(3, float("nan"))), NOT_FINITE),
    "infinity": (weights(lambda w: w[SCALE].__setitem__(3, -float("inf"))), NOT_FINITE),
    "a head of its own": (weights(lambda w: w.update({"lm_head.weight": w[EMBEDDING].flip(0).contiguous()})), OWN_HEAD),
    # Which files the weights are in; a pickle is not opened.
    "only pickles": (
        lambda folder: (folder / SAFETENSORS).rename(folder / "model.bin"),
        NOT_READABLE,
    ),
    "a pickle as weights": (lambda folder: pickles(folder, [SAFETENSORS]), NOT_READABLE),
    "an index of pickles": (index(a="pytorch_model.bin"), "pytorch_model.bin' cannot be read"),
    "an index of numbers": (index(a=1), "no weight_map of names"),
    # JSON.
    "an empty config": (content(CONFIG, b""), "config.json' cannot be read"),
    "a list as settings": (content(GENERATION, b"[]"), "generation_config.json' cannot be read"),
    "no text as a tokenizer": (content(TOKENIZER, b"\xff\xfe"), "tokenizer.json' cannot be read"),
    "deep brackets": (content(TOKENIZER_CONFIG, b"[" * 100_000), "tokenizer_config.json' cannot be read"),
    "no tokenizer": (lambda folder: (folder / TOKENIZER).unlink(), "tokenizer.json' cannot be read"),
    "an empty tokenizer": (content(TOKENIZER, b"{}"), "cannot be read"),
    # What a config claims: nothing is built that the weights do not have.
    "a billion layers": (config(n_layer=10**9), "has 1000000000 layers: the engine takes 1024"),
    "a layer too few": (config(n_layer=5), "'h.5.attn.c_attn.bias' is no weight of this model"),
    "a text as a size": (config(n_layer="6"), "'n_layer' expected int, got str"),
    "no heads": (config(n_head=0), "num_heads is 0"),
    "heads that do not share": (config(n_head=5), "width 128 cannot have 5 heads"),
    "no width": (config(n_embd=None), "'n_embd' expected int, got NoneType"),
    "a huge width": (config(n_embd=2**40, n_head=2**40), "by config.json it is"),
    "a huge context": (config(n_positions=10**12), "by config.json it is [1000000000000, 128]"),
    "a huge vocabulary": (config(vocab_size=10**12), "by config.json it is"),
    "an infinite epsilon": (config(layer_norm_epsilon=float("inf")), "layer_norm_eps is inf"),
    "another activation": (config(activation_function="relu"), "activation_function 'relu'"),
    "another attention": (config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx True"),
    "quantized weights": (config(quantization_config={"quant_method": "gptq"}), "has quantization_config"),
    "another family": (lambda folder: code(folder, model_type="evil"), "'evil' model: the engine runs only 'gpt2'"),
    "no family": (config(model_type=["gpt2"]), "is a ['gpt2'] model"),
}


@pytest.fixture
def folder(tmp_path):
    """A whole model folder of one's own."""
    return shutil.copytree(SHIPPED_MODEL, tmp_path / "model")


def refused(folder, words):
    with pytest.raises(ModelError) as caught:
        load_model(folder, device="cpu")
    text = str(caught.value)
    assert (text.count("\n"), len(text) < 600) == (0, True)
    assert words in text
    assert folder.name in text
    assert not (folder / "struck").exists()


@pytest.mark.parametrize(("spoil", "words"), BAD.values(), ids=BAD)
def test_a_bad_folder_is_refused_by_what_is_wrong(folder, spoil, words):
    spoil(folder)
    refused(folder, words)


def test_weights_too_large_for_float16_are_named(folder):
    weights(lambda w: w[SCALE].__setitem__(3, 1e6))(folder)
    with pytest.raises(ModelError, match=r"weights of 'h.0.ln_1.weight' are NaN or infinite in torch.float16"):
        load_model(folder, dtype="float16", device="cpu")


# -- what a folder may have -----------------------------------------------------------------------------------------


def padded_vocabulary(folder):
    config(vocab_size=4160)(folder)
    weights(lambda w: w.update({EMBEDDING: torch.cat([w[EMBEDDING], torch.zeros(64, 128)])}))(folder)


ALLOWED = {  # what a folder may have, and the model is the same
    "tokens of a class": fields(TOKENIZER_CONFIG, tokenizer_class="T5Tokenizer", extra_ids=300_000),
    "another float type": weights(lambda w: w.update({SCALE: w[SCALE].double()})),
    "an old mask": weights(lambda w: w.update({"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4).tril()})),
    "a padded vocabulary": padded_vocabulary,
    "the embedding as a head": added(**{"lm_head.weight": EMBEDDING}),
    "pickles": pickles,
    "code": code,
}


@pytest.fixture(scope="module")
def expected():
    return tokens_of(SHIPPED_MODEL)


def tokens_of(folder):
    engine = InferenceEngine(load_model(folder, device="cpu"))
    (done,) = engine.generate("Hello", SamplingParams(max_new_tokens=2))
    return done.token_ids


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_what_a_folder_may_have_changes_no_token(folder, expected, change, monkeypatch):
    monkeypatch.setattr("builtins.input", None)  # nobody is asked
    change(folder)
    assert tokens_of(folder) == expected
    assert not (folder / "struck").exists()
    if change is pickles:
        pickle.loads((folder / "vocab.pkl").read_bytes())
        assert (folder / "struck").exists()  # so it would have struck


def test_a_hub_id_is_found_in_the_cache_of_the_hub(tmp_path, expected, monkeypatch):
    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(SHIPPED_MODEL, repository / "snapshots" / "0123abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert tokens_of("someone/tiny") == expected
    assert load_model("someone/tiny", device="cpu").name == "tiny"
    with pytest.raises(ModelError, match=r"no model folder 'someone/nothing', and it cannot be fetched"):
        load_model("someone/nothing")
