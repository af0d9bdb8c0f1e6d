"""Configs, read by transformers' own classes: what the engine runs, and what it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING

from ..checks import is_count, one_line, shown
from ..errors import ModelError
from .folder import REMEDY
from .gpt2 import GPT2Shape
from .llama import Llama3Scaling, LlamaShape

FAMILIES = ("gpt2", "llama", "qwen2", "qwen3", "smollm3")  # the `model_type` of config.json
COMMON = {  # what the configs call them, and what the engine does
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context",
    "hidden_size": "width",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
}
GPT2_SIZES = COMMON | {"layer_norm_epsilon": "layer_norm_eps"}
SIZES = COMMON | {"intermediate_size": "inner", "num_key_value_heads": "num_kv_heads", "rms_norm_eps": "norm_eps"}
ORIGINAL = "original_max_position_embeddings"
SUPPORTED: dict[str, tuple[Any, ...]] = {  # the values that the engine runs of a setting, where a config has it
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "hidden_act": ("silu",),
    "rope_type": ("default", "llama3"),
    "partial_rotary_factor": (1.0,),
    "layer_types": ("full_attention",),
    "use_sliding_window": (False,),
    "quantization_config": (None,),
}
MOST_LAYERS = 1024  # before a list of so many is made


def shape_of(fields: Mapping[str, Any], name: str) -> GPT2Shape | LlamaShape:
    """The shape that the fields of a config.json say. name: of the model, for errors.

    Raises `ModelError` for a setting that the engine lacks, and for impossible sizes.
    """
    family = fields.get("model_type")
    if family not in FAMILIES:
        known = ", ".join(map(repr, FAMILIES))
        raise ModelError(f"{name!r} is a {shown(family)} model: the engine runs only {known}")
    layers = fields.get("n_layer", fields.get("num_hidden_layers"))
    if is_count(layers, MOST_LAYERS + 1):
        raise ModelError(f"{name!r} has {shown(layers)} layers: the engine takes {MOST_LAYERS}")
    try:
        config = CONFIG_MAPPING[family].from_dict(dict(fields))
        _require_supported(config, name)
        if family != "gpt2":
            return _llama(config)
        return GPT2Shape(**{ours: getattr(config, theirs) for theirs, ours in GPT2_SIZES.items()})
    except ModelError:
        raise
    except Exception as error:  # the checks of transformers raise many kinds: all of them mean the same here
        raise ModelError(f"the config of {name!r} cannot be used, {one_line(error)[:200]}; {REMEDY}") from error


def _require_supported(config: Any, name: str) -> None:
    told = vars(config) | (getattr(config, "rope_parameters", None) or {})
    told["layer_types"] = next((kind for kind in told.get("layer_types") or () if kind != "full_attention"), None)
    for setting, values in SUPPORTED.items():
        value = told.get(setting)
        if value is not None and value not in values:
            raise ModelError(f"{name!r} has {setting} {shown(value)}: the engine runs {' or '.join(map(str, values))}")


def _llama(config: Any) -> LlamaShape:
    biased, rope = bool(getattr(config, "attention_bias", False)), config.rope_parameters
    own = getattr(config, "head_dim", None)
    scaling = [rope.get(size) for size in ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)]
    return LlamaShape(
        **{ours: getattr(config, theirs) for theirs, ours in SIZES.items()},
        head_dim=own if own is not None else config.hidden_size // config.num_attention_heads,
        rope_theta=rope["rope_theta"],
        rope_scaling=None if rope["rope_type"] == "default" else Llama3Scaling(*scaling),
        without_rope=frozenset(i for i, rope in enumerate(getattr(config, "no_rope_layers", [])) if not rope),
        tied=config.tie_word_embeddings,
        qkv_bias=biased or config.model_type == "qwen2",
        out_bias=biased,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        qk_norm=config.model_type == "qwen3",
    )
