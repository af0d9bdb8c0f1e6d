"""A checkpoint means what `transformers` takes it to mean, or it is refused: no weight and no setting is dropped."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from rosecourse import InferenceEngine, ModelError, SamplingParams, load_model
from rosecourse.measure.rivals import as_transformers, time_pairs
from rosecourse.models.load import SHIPPED_MODEL, from_transformers
from tests.support.oracles import hf_random_gpt2

PROMPT = [5, 17, 30, 42, 24]  # after it come tokens most of which are new
EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"


@pytest.fixture
def folder(tmp_path, model):
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


def rewritten(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def theirs(folder, most=12):
    """Greedy tokens of `transformers`, up to the end of text."""
    hf = GPT2LMHeadModel.from_pretrained(folder).eval()
    ids = torch.tensor([PROMPT])
    kept = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 210}
    return hf, hf.generate(ids, max_new_tokens=most, **kept)[0, len(PROMPT) :].tolist()


def ours(model, most=12):
    return InferenceEngine(model).generate([PROMPT], SamplingParams(max_new_tokens=most))[0].token_ids


def assert_both_equal(folder, model):
    hf, expected = theirs(folder)
    assert ours(load_model(folder, device="cpu")) == expected
    assert ours(from_transformers(hf, model.tokenizer)) == expected
    return expected


# -- weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [True, None, False])
@pytest.mark.parametrize("head", [lambda w: w.flip(0), lambda w: w + torch.eye(*w.shape) * 1e-3])
def test_an_output_projection_of_its_own_is_refused(folder, model, told, head):
    rewritten(folder, lambda w: w.update({HEAD: head(w[EMBEDDING]).contiguous()}))
    if told is None:
        change(folder / "config.json", leave_out=["tie_word_embeddings"])
    else:
        change(folder / "config.json", tie_word_embeddings=told)
    with pytest.raises(ModelError, match=r"has an output projection 'lm_head\.weight' of its own"):
        load_model(folder, device="cpu")
    with pytest.raises(ModelError, match=r"has an output projection 'lm_head\.weight' of its own"):
        from_transformers(GPT2LMHeadModel.from_pretrained(folder), model.tokenizer)


@pytest.mark.parametrize("told", [True, False])
def test_an_output_projection_equal_to_the_embedding_is_taken(folder, model, told):
    change(folder / "config.json", tie_word_embeddings=told)
    if not told:  # it is missing, and not made up
        with pytest.raises(ModelError, match=r"has an output projection 'lm_head\.weight' of its own"):
            load_model(folder, device="cpu")
    rewritten(folder, lambda w: w.update({HEAD: w[EMBEDDING].clone()}))
    assert_both_equal(folder, model)


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("lm_head.bias", "transformer.ln_f.bias"),
        ("score.weight", EMBEDDING),
        ("transformer.h.0.mlp.attn.bias", "transformer.h.0.attn.c_attn.bias"),
        ("transformer.h.0.crossattention.c_attn.weight", "transformer.h.0.attn.c_attn.weight"),
        ("transformer.h.0.attn.c_attn.lora_A.weight", "transformer.h.0.attn.c_attn.weight"),
    ],
)
def test_a_weight_that_the_model_lacks_is_refused_by_name(folder, name, like):
    rewritten(folder, lambda w: w.update({name: w[like].clone()}))
    with pytest.raises(ModelError, match=name.removeprefix("transformer.")):
        load_model(folder, device="cpu")


def test_one_weight_in_two_files_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model-1.safetensors")
    save_file({EMBEDDING: weights[EMBEDDING] + 1}, folder / "model-2.safetensors")
    index = dict.fromkeys(weights, "model-1.safetensors") | {EMBEDDING: "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ModelError, match=r"two tensors for the weight 'wte\.weight'"):
        load_model(folder, device="cpu")


def test_a_module_that_was_put_into_a_model_is_refused(model):
    hf = hf_random_gpt2()
    hf.lm_head = torch.nn.Linear(16, 211, bias=True)
    with pytest.raises(ModelError, match=r"lm_head\.bias"):
        from_transformers(hf, model.tokenizer)


# -- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "kept"), [(2, True), (3, False), (8, True)])
def test_other_names_for_a_setting(folder, model, heads, kept):
    renamed = {
        "num_attention_heads": heads,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "max_position_embeddings": 96,
    }
    change(folder / "config.json", leave_out=[] if kept else ["n_head", "n_embd", "n_layer", "n_positions"], **renamed)
    assert load_model(folder, device="cpu").shape.num_heads == heads
    assert_both_equal(folder, model)


# -- end of text --------------------------------------------------------------------------------------------------

NO_FILE, ABSENT = "no file", "absent"


@pytest.mark.parametrize("in_config", [ABSENT, None, 3, [4, 3]])
@pytest.mark.parametrize("in_generation_config", [NO_FILE, ABSENT, None, 6, [7, 6]])
def test_the_end_of_text_is_the_one_of_transformers(folder, model, in_config, in_generation_config):
    """Ends are named by their place among the tokens that follow without one."""
    free = theirs(folder)[1]
    assert all(free.index(free[n]) == n for n in (3, 4, 6, 7))

    def said(end):
        return [free[n] for n in end] if isinstance(end, list) else end if end is None else free[end]

    def tell(path, end):
        change(path, leave_out=["eos_token_id"])
        if end != ABSENT:
            change(path, eos_token_id=said(end))

    tell(folder / "config.json", in_config)
    if in_generation_config == NO_FILE:
        (folder / "generation_config.json").unlink()
    else:
        tell(folder / "generation_config.json", in_generation_config)
    expected = assert_both_equal(folder, model)
    told = in_config if in_generation_config == NO_FILE else in_generation_config
    ends = {ABSENT: 12, None: 12, 3: 4, 6: 7}
    assert len(expected) == (min(told) + 1 if isinstance(told, list) else ends[told])


@pytest.mark.parametrize("end", ["3", 1.5, True, [3, None], [[3]], {"a": 3}])
def test_an_end_of_text_that_is_no_token_is_refused(folder, end):
    change(folder / "generation_config.json", eos_token_id=end)
    with pytest.raises(ModelError, match=r"generation_config\.json' cannot be read: its eos_token_id is"):
        load_model(folder, device="cpu")


# -- the rival ----------------------------------------------------------------------------------------------------


def test_the_rival_has_the_weights_of_the_folder_and_goes_on_behind_the_end(folder):
    model = load_model(folder, device="cpu")
    rival, expected = as_transformers(model), GPT2LMHeadModel.from_pretrained(folder)
    assert all(torch.equal(weight, expected.state_dict()[name]) for name, weight in rival.state_dict().items())
    model.eos_token_id = theirs(folder)[1][3]
    params = SamplingParams(max_new_tokens=12, stop_on_eos=False)
    assert time_pairs(InferenceEngine(model), [PROMPT], params, pairs=1)[2]
