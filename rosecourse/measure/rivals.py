"""`transformers` on the same weights and prompts, timed in turns with this engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GPT2Config, LlamaConfig, PreTrainedModel

from ..checks import shown
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..errors import ConfigError
from ..models.configs import SIZES
from ..models.folder import HEAD
from ..models.gpt2 import GPT2, GPT2Shape
from ..models.llama import Llama, LlamaShape
from ..models.shape import Model
from .stats import interleave_all
from .workload import require_whole


def as_transformers(model: Model) -> PreTrainedModel:
    """The model as `transformers` has it, read from its folder; one without a folder is made from its shape.

    Raises `ConfigError` for a model of another family.
    """
    if not isinstance(model, GPT2 | Llama):
        raise ConfigError(f"the model {shown(model.name)} is of no family known here: give a GPT-2 or a Llama")
    if model.folder is not None:
        theirs: Any = AutoModelForCausalLM.from_pretrained(model.folder)
    else:
        config = _gpt2(model.shape) if isinstance(model.shape, GPT2Shape) else _llama(model.shape)
        with torch.device(model.device):
            theirs = AutoModelForCausalLM.from_config(config, dtype=model.dtype)
        theirs.base_model.load_state_dict({name: weight for name, weight in model.weights.items() if name != HEAD})
        theirs.lm_head.weight.data.copy_(model.weights.get(HEAD, theirs.get_input_embeddings().weight))
    theirs.generation_config = GenerationConfig()  # greedy to the end
    return theirs.to(model.device, model.dtype).eval()


def _gpt2(shape: GPT2Shape) -> GPT2Config:
    sizes: dict[str, Any] = {"n_embd": shape.width, "n_layer": shape.num_layers, "n_head": shape.num_heads}
    sizes |= {"vocab_size": shape.vocab_size, "n_positions": shape.context, "bos_token_id": None, "eos_token_id": None}
    return GPT2Config(layer_norm_epsilon=shape.layer_norm_eps, **sizes)


def _llama(shape: LlamaShape) -> LlamaConfig:
    """Of a shape of `random_model`, which is a plain Llama's."""
    sizes: dict[str, Any] = {theirs: getattr(shape, ours) for theirs, ours in SIZES.items()}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if shape.rope_scaling is not None:
        scaling = asdict(shape.rope_scaling)
        rope |= {"rope_type": "llama3", "original_max_position_embeddings": scaling.pop("original_context")} | scaling
    more: dict[str, Any] = {"head_dim": shape.head_dim, "tie_word_embeddings": shape.tied, "rope_parameters": rope}
    return LlamaConfig(**sizes, **more)


def transformers_completions(
    model: Any, prompts: list[list[int]], max_new_tokens: int, static_cache: bool = False
) -> list[list[int]]:
    """Greedy completions by `transformers` generate. model: as `as_transformers` gives it.

    static_cache: over K and V of a fixed size; on a GPU `generate` then compiles the forward of a token.
    """
    ids = torch.tensor(prompts, device=model.device)
    asked = {"max_new_tokens": max_new_tokens, "do_sample": False, "pad_token_id": 0}
    cache = {"cache_implementation": "static"} if static_cache else {}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **asked, **cache)
    return out[:, ids.shape[1] :].tolist()


def time_pairs(
    engine: InferenceEngine, prompts: list[list[int]], params: SamplingParams, pairs: int, static_cache: bool = False
) -> tuple[list[float], list[float], bool]:
    """The seconds of `transformers` and of the engine for these prompts, in turns, and whether all tokens were equal.

    Raises `RequestFailed` unless every request gives all of its tokens: `transformers` does not stop here.
    """
    theirs = as_transformers(engine.model)
    asked = [replace(params, stop_on_eos=False)] * len(prompts)
    tokens: list[list[list[int]]] = []

    def by_transformers() -> list[list[int]]:
        return transformers_completions(theirs, prompts, params.max_new_tokens, static_cache)

    def by_engine() -> list[list[int]]:
        results = engine.generate(prompts, params)
        completions = [result.token_ids for result in results]
        require_whole(asked, completions, [result.finish_reason for result in results])
        return completions

    def seconds_of(complete: Callable[[], list[list[int]]]) -> float:
        start = time.perf_counter()
        tokens.append(complete())
        return time.perf_counter() - start

    before, after = interleave_all([partial(seconds_of, by_transformers), partial(seconds_of, by_engine)], pairs)
    return before, after, all(each == tokens[0] for each in tokens)
