"""A checkpoint means what `transformers` takes it to mean: no weight and no setting is dropped."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from rosecourse import InferenceEngine, ModelError, SamplingParams, load_model
from rosecourse.models.load import SHIPPED_MODEL
from tests.support.oracles import hf_random_gpt2

PROMPT = [5, 17, 30, 42, 24]  # after it come tokens most of which are new


@pytest.fixture
def folder(tmp_path):
    """A small random GPT-2 of 4 heads in a folder, with a tokenizer of fewer tokens."""
    hf_random_gpt2(num_heads=4, head_dim=6).save_pretrained(tmp_path)
    backend = json.loads((SHIPPED_MODEL / "tokenizer.json").read_text())
    vocab = sorted(backend["model"]["vocab"], key=backend["model"]["vocab"].get)[:200]
    backend["model"].update(vocab={token: n for n, token in enumerate(vocab)}, merges=[])
    (tmp_path / "tokenizer.json").write_text(json.dumps(backend))
    return tmp_path


def change(path, leave_out=(), **fields):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (content | fields).items() if k not in leave_out}))


def theirs(folder):
    """Greedy tokens of `transformers`, up to the end of text."""
    hf = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor([PROMPT])
    kept = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 210}
    return hf, hf.generate(ids, max_new_tokens=12, **kept)[0, len(PROMPT) :].tolist()


def assert_equal(folder):
    expected = theirs(folder)[1]
    (done,) = InferenceEngine(load_model(folder, device="cpu")).generate([PROMPT], SamplingParams(max_new_tokens=12))
    assert done.token_ids == expected
    return expected


def test_an_output_projection_counts_only_as_the_embedding(folder):
    path, embedding = folder / "model.safetensors", "transformer.wte.weight"
    weights = load_file(path)
    save_file(weights | {"lm_head.weight": weights[embedding].clone()}, path, metadata={"format": "pt"})
    assert_equal(folder)
    save_file(weights | {"lm_head.weight": weights[embedding] + 1e-3}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"has an output projection 'lm_head\.weight' of its own"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize(("heads", "kept"), [(2, True), (3, False), (8, True)])
def test_a_setting_has_other_names(folder, heads, kept):
    renamed = {"hidden_size": 24, "num_hidden_layers": 3, "max_position_embeddings": 96}
    without = [] if kept else ["n_head", "n_embd", "n_layer", "n_positions"]
    change(folder / "config.json", without, num_attention_heads=heads, **renamed)
    assert load_model(folder, device="cpu").shape.num_heads == heads
    assert_equal(folder)


ABSENT = "absent"
ENDS = [  # in config.json, in generation_config.json (None: no such file), tokens: ends by their place among these
    (ABSENT, None, 12),
    (3, None, 4),
    ([4, 3], None, 4),
    ([], None, 12),
    (3, ABSENT, 12),
    (3, [], 12),
    (3, 6, 7),
    (ABSENT, [7, 6], 7),
]


@pytest.mark.parametrize(("in_config", "in_generation_config", "count"), ENDS)
def test_the_end_of_text_is_that_of_transformers(folder, in_config, in_generation_config, count):
    free = theirs(folder)[1]
    assert all(free.index(free[n]) == n for n in (3, 4, 6, 7))
    for name, ends in (("config.json", in_config), ("generation_config.json", in_generation_config)):
        if ends is None:
            (folder / name).unlink()
        elif ends == ABSENT:
            change(folder / name, ["eos_token_id"])
        elif ends == []:
            change(folder / name, eos_token_id=None)
        else:
            change(folder / name, eos_token_id=[free[n] for n in ends] if isinstance(ends, list) else free[ends])
    assert len(assert_equal(folder)) == count
