"""Configs of the Llama family, read by transformers' own classes: what the engine runs, and what it refuses by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import CONFIG_MAPPING

from ..checks import is_count, one_line, shown
from ..errors import ModelError
from .folder import ANEW
from .llama import Llama3Scaling, LlamaShape

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")  # the `model_type` of config.json
SIZES = {  # what the configs call them, and what the engine does
    "vocab_size": "vocab_size",
    "max_position_embeddings": "context",
    "hidden_size": "width",
    "intermediate_size": "inner",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "rms_norm_eps": "norm_eps",
}
# The other settings that the engine uses; it sees no others: some would fill the memory.
USED = {"head_dim", "hidden_act", "rope_theta", "rope_scaling", "rope_parameters", "attention_bias", "mlp_bias"}
USED |= {"tie_word_embeddings", "no_rope_layers", "no_rope_layer_interval", "use_sliding_window", "layer_types"}
USED |= {"sliding_window", "max_window_layers", "quantization_config"}
SUPPORTED = "the engine runs full attention with RoPE 'default' or 'llama3', SiLU, and weights that are not quantized"
MOST_LAYERS = 1024  # before a list of so many is made


def llama_shape(fields: Mapping[str, Any], name: str) -> LlamaShape:
    """The shape that a config says. Raises `ModelError` for a setting that the engine lacks, and for impossible sizes.

    fields: of config.json; name: of the model, for errors.
    """
    family = fields["model_type"]
    if is_count(fields.get("num_hidden_layers"), MOST_LAYERS + 1):
        raise ModelError(f"{name!r} has {shown(fields['num_hidden_layers'])} layers: the engine takes {MOST_LAYERS}")
    used = {field: value for field, value in fields.items() if field in USED | SIZES.keys()}
    try:
        config = CONFIG_MAPPING[family].from_dict(used)
    except Exception as error:  # its checks raise many kinds: all of them mean the same here
        raise ModelError(f"the config of {name!r} cannot be used, {one_line(error)[:200]}; {ANEW}") from error
    _refuse(config, name)
    biased = bool(getattr(config, "attention_bias", False))
    heads = (config.hidden_size, config.num_attention_heads)
    try:
        own = getattr(config, "head_dim", None)
        return LlamaShape(
            **{ours: getattr(config, theirs) for theirs, ours in SIZES.items()},
            head_dim=own if own is not None else heads[0] // heads[1],
            rope_theta=config.rope_parameters["rope_theta"],
            rope_scaling=_scaling(config.rope_parameters),
            without_rope=frozenset(i for i, rope in enumerate(getattr(config, "no_rope_layers", [])) if not rope),
            tied=config.tie_word_embeddings,
            qkv_bias=biased or family == "qwen2",
            out_bias=biased,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            qk_norm=family == "qwen3",
        )
    except (ModelError, TypeError, ZeroDivisionError, KeyError) as error:
        raise ModelError(f"the config of {name!r} cannot be used, {one_line(error)}; {ANEW}") from error


def _scaling(rope: Mapping[str, Any]) -> Llama3Scaling | None:
    if rope["rope_type"] == "default":
        return None
    sizes = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return Llama3Scaling(*(rope[size] for size in sizes))


def _refuse(config: Any, name: str) -> None:
    """Raise `ModelError` for the first setting that the engine lacks."""
    rope = config.rope_parameters or {}
    kinds = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    lacking = {
        "hidden_act": config.hidden_act if config.hidden_act != "silu" else None,
        "rope_type": rope.get("rope_type") if rope.get("rope_type") not in ("default", "llama3") else None,
        "partial_rotary_factor": rope.get("partial_rotary_factor")
        if rope.get("partial_rotary_factor", 1) != 1
        else None,
        "layer_types": min(kinds, default=None),
        "sliding_window": config.sliding_window if getattr(config, "use_sliding_window", False) else None,
        "quantization_config": getattr(config, "quantization_config", None),
    }
    for setting, value in lacking.items():
        if value is not None:
            raise ModelError(f"{name!r} has {setting} {shown(value)}: {SUPPORTED}")
