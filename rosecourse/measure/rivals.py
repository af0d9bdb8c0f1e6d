"""Other engines on the same weights and prompts, timed in turns with this one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ..checks import shown
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..errors import ConfigError
from ..models.gpt2 import GPT2
from ..models.shape import Model
from .stats import interleave
from .whole_runs import Answer, require_whole


def transformers_completions(model: Any, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy completions by `transformers` generate with its dynamic cache. model: as `as_transformers` gives it."""
    ids = torch.tensor(prompts, device=model.device)
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
    return out[:, ids.shape[1] :].tolist()


def as_transformers(model: Model) -> GPT2LMHeadModel:
    """A GPT-2's weights in the model of `transformers`, which makes all the tokens that it is asked for.

    Raises `ConfigError` for a model of another family.
    """
    if not isinstance(model, GPT2):
        raise ConfigError(f"the model {shown(model.name)} is not a GPT-2: give one to compare with `transformers`")
    shape = model.shape
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        layer_norm_epsilon=shape.layer_norm_eps,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs: Any = GPT2LMHeadModel(config)  # its own types refuse `to` and `generate`
    theirs.to(model.device, model.dtype).eval()
    theirs.transformer.load_state_dict(model.weights)
    return theirs


@dataclass
class PairedRuns:
    """The seconds of each counted run of both, and whether they made the same tokens in all runs."""

    transformers: list[float]
    engine: list[float]
    same_tokens: bool


def time_pairs(engine: InferenceEngine, prompts: list[list[int]], params: SamplingParams, pairs: int) -> PairedRuns:
    """Let `transformers` and the engine complete the prompts, in interleaved runs.

    Raises `RequestFailed` unless every request gives all of its tokens: `transformers` does not stop at the end of text
    here, so that the engine must not either.
    """
    theirs = as_transformers(engine.model)
    asked = replace(params, stop_on_eos=False)
    tokens: list[list[list[int]]] = []

    def by_transformers() -> float:
        start = time.perf_counter()
        tokens.append(transformers_completions(theirs, prompts, params.max_new_tokens))
        return time.perf_counter() - start

    def by_engine() -> float:
        start = time.perf_counter()
        results = engine.generate(prompts, params)
        seconds = time.perf_counter() - start
        require_whole([Answer.of_generation(asked, result) for result in results])
        tokens.append([result.token_ids for result in results])
        return seconds

    before, after = interleave(by_transformers, by_engine, pairs)
    return PairedRuns(before, after, all(each == tokens[0] for each in tokens))
