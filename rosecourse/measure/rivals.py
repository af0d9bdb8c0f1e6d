"""`transformers` on the same weights and prompts, timed in turns with this engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from ..checks import shown
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..errors import ConfigError
from ..models.gpt2 import GPT2
from ..models.shape import Model
from .stats import interleave_all
from .workload import require_whole


def as_transformers(model: Model) -> GPT2LMHeadModel:
    """A GPT-2 as `transformers` has it, with our weights. Raises `ConfigError` for a model of another family."""
    if not isinstance(model, GPT2):
        raise ConfigError(f"the model {shown(model.name)} is not a GPT-2: give one to compare with `transformers`")
    shape = model.shape
    sizes: dict[str, Any] = {"n_embd": shape.width, "n_layer": shape.num_layers, "n_head": shape.num_heads}
    sizes |= {"vocab_size": shape.vocab_size, "n_positions": shape.context}
    theirs: Any = GPT2LMHeadModel(GPT2Config(layer_norm_epsilon=shape.layer_norm_eps, **sizes))
    theirs.transformer.load_state_dict(model.weights)
    theirs.generation_config = GenerationConfig()  # greedy to the end
    return theirs.to(model.device, model.dtype).eval()


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
