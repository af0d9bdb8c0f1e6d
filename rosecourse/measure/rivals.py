"""Other engines on the same weights and prompts, timed in turns with this one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from ..checks import require, shown
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..errors import ConfigError
from ..models.gpt2 import GPT2
from ..models.load import quiet
from ..models.shape import Model
from .stats import interleave
from .whole_runs import Answer, require_whole


@dataclass(frozen=True)
class Generate:
    """How `transformers` generates.

    static_cache: over K and V of a fixed size, not over tensors that grow with each token. compiled: with the forward
    of one token compiled by `torch.compile`, which needs that size. Raises `ConfigError` for one without the other.
    """

    static_cache: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        told = "a compiled forward needs a static cache, else it is compiled anew for each length"
        require(self.static_cache or not self.compiled, f"{told}: ask for both")

    def __str__(self) -> str:
        return f"{'static' if self.static_cache else 'dynamic'} cache{', compiled' if self.compiled else ''}"

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of its `generate`, which compiles by itself on CUDA unless it is told not to."""
        return {"cache_implementation": "static", "disable_compile": True} if self.static_cache else {}


def transformers_completions(
    model: Any, prompts: list[list[int]], max_new_tokens: int, settings: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """Greedy completions by `transformers` generate. model: as `as_transformers` gives it; settings: of `Generate`."""
    ids = torch.tensor(prompts, device=model.device)
    asked = {"max_new_tokens": max_new_tokens, "do_sample": False, "pad_token_id": 0, **(settings or {})}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
    return out[:, ids.shape[1] :].tolist()


def compile_decoding(model: Any) -> None:
    """Let `torch.compile` make the forward of a model of `transformers` for one token a sequence, when it first runs.

    The prompt is computed by the forward as it is: once in a run. On CUDA the kernels become a CUDA graph, as with
    `transformers`' own `CompileConfig`.
    """
    forward = model.forward
    mode = "reduce-overhead" if model.device.type == "cuda" else "default"
    one_token = torch.compile(forward, dynamic=False, mode=mode)

    @wraps(forward)  # `generate` looks at its arguments
    def either(*args: Any, **kwargs: Any) -> Any:
        ids = kwargs.get("input_ids")
        chosen = one_token if ids is not None and ids.shape[1] == 1 else forward
        return chosen(*args, **kwargs)

    model.forward = either


def as_transformers(model: Model) -> GPT2LMHeadModel:
    """A GPT-2 as `transformers` has it, which makes all the tokens that it is asked for.

    One from a folder is loaded from there, so that what we read of it wrongly shows; a random one has our weights.
    Raises `ConfigError` for a model of another family.
    """
    if not isinstance(model, GPT2):
        raise ConfigError(f"the model {shown(model.name)} is not a GPT-2: give one to compare with `transformers`")
    theirs: Any = _from_weights(model) if model.folder is None else _from_folder(model.folder)
    theirs.generation_config = GenerationConfig()  # greedy to the end, whatever the folder says of sampling
    return theirs.to(model.device, model.dtype).eval()


def _from_folder(folder: Path) -> GPT2LMHeadModel:
    with quiet():
        return GPT2LMHeadModel.from_pretrained(folder, use_safetensors=True)


def _from_weights(model: GPT2) -> GPT2LMHeadModel:
    shape = model.shape
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        layer_norm_epsilon=shape.layer_norm_eps,
    )
    theirs = GPT2LMHeadModel(config)
    theirs.transformer.load_state_dict(model.weights)
    return theirs


@dataclass
class PairedRuns:
    """The seconds of each counted run of both, and whether they made the same tokens in all runs.

    compiling: seconds of the run before all others, in which `transformers` compiled its forward; None: it did not.
    """

    transformers: list[float]
    engine: list[float]
    same_tokens: bool
    compiling: float | None = None


DYNAMIC = Generate()


def time_pairs(
    engine: InferenceEngine, prompts: list[list[int]], params: SamplingParams, pairs: int, generate: Generate = DYNAMIC
) -> PairedRuns:
    """Let `transformers` and the engine complete the prompts, in interleaved runs.

    Raises `RequestFailed` unless every request gives all of its tokens: `transformers` does not stop at the end of text
    here, so that the engine must not either. Raises `ConfigError` where its forward cannot be compiled.
    """
    theirs = as_transformers(engine.model)
    asked = replace(params, stop_on_eos=False)
    tokens: list[list[list[int]]] = []

    def by_transformers() -> float:
        start = time.perf_counter()
        tokens.append(transformers_completions(theirs, prompts, params.max_new_tokens, generate.settings))
        return time.perf_counter() - start

    def by_engine() -> float:
        start = time.perf_counter()
        results = engine.generate(prompts, params)
        seconds = time.perf_counter() - start
        require_whole([Answer.of_generation(asked, result) for result in results])
        tokens.append([result.token_ids for result in results])
        return seconds

    compiling = None
    if generate.compiled:
        compile_decoding(theirs)
        compiling = _compiled_by(by_transformers)
    before, after = interleave(by_transformers, by_engine, pairs)
    return PairedRuns(before, after, all(each == tokens[0] for each in tokens), compiling)


def _compiled_by(first_run: Callable[[], float]) -> float:
    """The seconds of the run that compiles. Raises `ConfigError` where it cannot, as without a C++ compiler."""
    try:
        return first_run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of torch's compilers, whose own types are not public
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(
            f"torch.compile could not compile the forward of transformers ({why:.200}): install a C++ compiler (g++), "
            "which it needs on a CPU, or do without compiling"
        ) from error
