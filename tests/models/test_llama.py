"""The Llama family: what `transformers` computes of a folder, on every kind of rung, or a refusal by name."""

import json
import shutil

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from rosecourse import EngineConfig, InferenceEngine, ModelError, SamplingParams, lesson, load_model
from rosecourse.measure.floor import weight_bytes
from rosecourse.models.llama import Llama, Llama3Scaling
from rosecourse.models.load import RANDOM_SHAPES, SHIPPED, SHIPPED_MODEL, resolve_dtype
from tests.support.llamas import LLAMA3, greedy, random_hf

SMALL = {"vocab_size": 4096, "hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 64}
SMALL |= {"max_position_embeddings": 40, "initializer_range": 0.3}  # steps differ in their tokens
BIASED = {"attention_bias": True, "mlp_bias": True}


def heads(query, kv, **more):
    return SMALL | {"num_attention_heads": query, "num_key_value_heads": kv} | more


FAMILY = {
    "multi-head": (LlamaForCausalLM, LlamaConfig(**heads(3, 3))),
    "llama3": (
        LlamaForCausalLM,
        LlamaConfig(**heads(6, 2, tie_word_embeddings=True, rope_parameters=LLAMA3, **BIASED)),
    ),
    "multi-query": (Qwen2ForCausalLM, Qwen2Config(**heads(4, 1))),
    "wide heads": (Qwen3ForCausalLM, Qwen3Config(**heads(4, 2, head_dim=128))),
    "some layers without RoPE": (
        SmolLM3ForCausalLM,
        SmolLM3Config(**heads(4, 2, no_rope_layers=[1, 0, 1], pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    ),
}
PROMPTS = [[5, 900, 17, 4000], [8, 9, 10], [3] * 8, [77]]
NEW = 24


@pytest.fixture(scope="module", params=FAMILY)
def pair(request, tmp_path_factory):
    """A folder of one member with random weights, and the model of `transformers`."""
    hf = random_hf(*FAMILY[request.param])
    folder = tmp_path_factory.mktemp("model")
    hf.save_pretrained(folder)
    for path in SHIPPED_MODEL.glob("token*.json"):
        shutil.copy(path, folder)
    return folder, hf


@pytest.fixture
def folder(pair):
    return pair[0]


def ours(model, number, prompts=PROMPTS, most=NEW, **config):
    config = EngineConfig(**{"max_batch_size": 3, "block_size": 4, "max_seq_len": 40} | config)
    engine = InferenceEngine(model, config, lesson(number).after)
    params = SamplingParams(max_new_tokens=most, stop_on_eos=False)
    return [one.token_ids for one in engine.generate(prompts, params)]


@pytest.mark.parametrize(
    ("number", "block"), [("035", 1), ("038", 16), ("061", 4), ("064", 4), ("068", 64), ("071", 4)]
)
def test_greedy_tokens_are_those_of_transformers(pair, number, block):
    folder, hf = pair
    model = load_model(folder, device="cpu")
    expected = [greedy(hf, prompt, NEW) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) > 40
    assert ours(model, number, block_size=block) == expected


def test_tokens_are_right_up_to_the_context_and_preempted(pair):
    folder, hf = pair
    model = load_model(folder, device="cpu")
    prompts = [[5, 900, 17, 4000], [8, 9, 10, 11]]
    expected = [greedy(hf, prompt, 36) for prompt in prompts]
    for num_blocks in (20, 14):  # two requests of 10 blocks
        assert ours(model, "071", prompts, 36, num_blocks=num_blocks) == expected


def test_shipped_llama_on_both_end_rungs_equals_transformers():
    model = load_model("tiny-llama", device="cpu")
    hf = LlamaForCausalLM.from_pretrained(SHIPPED["tiny-llama"]).eval()
    prompt = model.tokenizer.encode("It is a truth universally acknowledged")
    for number in ("035", "071"):
        assert ours(model, number, [prompt], 24) == [greedy(hf, prompt, NEW)]


def test_llama3_frequencies_are_those_of_transformers():
    config = LlamaConfig(**heads(2, 2, head_dim=64, rope_parameters=LLAMA3))
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    plain = 1.0 / 5e3 ** (torch.arange(0, 64, 2).float() / 64)
    torch.testing.assert_close(Llama3Scaling(8.0, 1.0, 4.0, 32)(plain), expected)


# -- folders ------------------------------------------------------------------------------------------------------


def changed(folder, tmp_path, **fields):
    """A copy of the folder with other fields in its config."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | fields))
    return copy


REFUSED = [
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "rope_type 'yarn'"),
    ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}, "rope_type 'linear'"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ({"num_hidden_layers": 10**9}, "layers: the engine takes"),
    ({"num_hidden_layers": 900}, "layers"),
    ({"intermediate_size": 65}, "by config.json it is"),
    ({"num_attention_heads": 0}, "cannot be used"),
    ({"model_type": "mistral"}, "the engine runs only 'gpt2', 'llama', 'qwen2', 'qwen3', 'smollm3'"),
]


@pytest.mark.parametrize(("fields", "said"), REFUSED, ids=[next(iter(fields)) for fields, _ in REFUSED])
def test_a_setting_that_the_engine_lacks_is_refused_by_name(folder, tmp_path, fields, said):
    with pytest.raises(ModelError, match=said):
        load_model(changed(folder, tmp_path, **fields), device="cpu")


def test_a_sliding_window_is_refused(folder, tmp_path):
    if json.loads((folder / "config.json").read_text())["model_type"] == "llama":
        pytest.skip("Llama has none")
    with pytest.raises(ModelError, match="sliding"):
        load_model(changed(folder, tmp_path, use_sliding_window=True, sliding_window=8, layer_types=None), device="cpu")


def test_weights_in_several_files_are_read(pair, tmp_path):
    folder, hf = pair
    hf.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    for path in folder.glob("token*.json"):
        shutil.copy(path, tmp_path)
    assert ours(load_model(tmp_path, device="cpu"), "071") == ours(load_model(folder, device="cpu"), "071")


def test_weights_saved_in_bfloat16_stay_so_on_a_gpu_alone():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert resolve_dtype(None, cuda, "bfloat16") == torch.bfloat16
    assert resolve_dtype(None, cuda, "float32") == torch.float16
    assert resolve_dtype(None, cpu, "bfloat16") == torch.float32
    assert resolve_dtype("float16", cuda, "bfloat16") == torch.float16


# -- sizes --------------------------------------------------------------------------------------------------------

PUBLISHED = {"smollm2-135m": 134_515_008, "llama-1b": 1_235_814_400, "llama-8b": 8_030_261_248}  # weights


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_shape_has_as_many_weights_as_its_model(name):
    shape = RANDOM_SHAPES[name]
    assert sum(torch.Size(size).numel() for size in shape.parameters().values()) == PUBLISHED[name]
    read = PUBLISHED[name] - (0 if shape.tied else shape.vocab_size * shape.width)  # of the embedding a few rows
    assert weight_bytes(shape, torch.bfloat16) == 2 * read


def test_joined_maps_hold_no_weight_twice(pair):
    model = load_model(pair[0], device="cpu")
    assert isinstance(model, Llama)
    layer = model.layers[0]
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    held = [model.weights[f"layers.0.{name}.weight"] for name in names]
    assert {one.untyped_storage().data_ptr() for one in held} == {layer.qkv.weight.untyped_storage().data_ptr()}
    torch.testing.assert_close(torch.cat(held).T, layer.qkv.weight)
