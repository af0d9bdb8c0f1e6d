"""Models from a folder, from the Hugging Face hub, or with random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import logging as hub_logging
from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel, PreTrainedConfig
from transformers.utils import logging

from ..checks import is_count, one_line, shown
from ..config import DATA
from ..errors import ModelError
from .folder import ANEW, check_json, check_weights, unreadable
from .gpt2 import GPT2, GPT2Shape
from .shape import Model, ModelShape

SHIPPED_MODEL = DATA / "tiny-gpt2"
RANDOM_SHAPES = {
    "gpt2": GPT2Shape(vocab_size=50257, context=1024, width=768, num_layers=12, num_heads=12),
    "gpt2-medium": GPT2Shape(vocab_size=50257, context=1024, width=1024, num_layers=24, num_heads=16),
}
LONGEST_PATH = 4096  # characters
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def resolve_device(device: str | torch.device = "auto") -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        known = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ModelError(f"no device is called {shown(device)}: give 'auto', 'cpu' or 'cuda'") from None
    if known.type not in ("cpu", "cuda"):
        raise ModelError(f"the engine does not run on {shown(device)}: give 'auto', 'cpu' or 'cuda'")
    if known.type == "cpu":
        return torch.device("cpu")  # torch has a single CPU device, whatever its number
    if not torch.cuda.is_available() or (known.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"there is no {str(device)!r} on this machine: give device='cpu', or 'auto' to take what is there"
        )
    return known


def resolve_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    """None is float32 on a CPU and float16 on CUDA."""
    if dtype is None:
        return torch.float16 if device.type == "cuda" else torch.float32
    known = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(known, torch.dtype) or known not in DTYPES.values():
        raise ModelError(f"the engine does not compute in {shown(dtype)}: give one of {', '.join(DTYPES)}")
    return known


def load_model(
    name_or_path: str | Path | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
) -> Model:
    """The model that ships with the course (None), one from a Hugging Face folder, or a hub id such as `gpt2`.

    dtype: `float32`, `float16` or `bfloat16`; None is float32 on a CPU, float16 on CUDA. The weights are cast once.
    Raises `ModelError` for a folder that is missing, damaged or of another architecture, a hub id that cannot be
    fetched, or a device that is not there. Only safetensors are read, and no code of the model's own is run.
    """
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    source = _source(SHIPPED_MODEL if name_or_path is None else name_or_path)
    with _quiet():
        config = _config(source)
        return LOADERS[config.model_type](source, config, dtype, device)


def _load_gpt2(source: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> GPT2:
    shape = _gpt2_shape(config, source)
    if os.path.isdir(source):
        check_weights(Path(source), shape)
    model, tokenizer = _read(GPT2LMHeadModel, source, config)
    _check_tokenizer(tokenizer, shape, source)
    return from_transformers(model, tokenizer, Path(source).resolve().name, dtype, device)


# The families that the engine runs: by the `model_type` of a config, loader(source, config, dtype, device).
LOADERS: dict[str, Callable[[str, PreTrainedConfig, torch.dtype, torch.device], Model]] = {"gpt2": _load_gpt2}


def _read(family: Any, source: str, config: PreTrainedConfig) -> tuple[Any, Any]:
    """A model in float32 and its tokenizer, as `transformers` reads them; family: its class for this architecture."""
    try:
        model, report = family.from_pretrained(
            source, config=config, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds for a bad folder: all of them mean the same here
        raise unreadable(f"the model {source!r}", error) from error
    if report["missing_keys"]:  # transformers makes up what is missing
        raise ModelError(f"the model {source!r} cannot be read: no weights for {min(report['missing_keys'])!r}")
    return model, tokenizer


def _source(name_or_path: str | Path) -> str:
    """A folder's path or a hub id. Raises `ModelError` for anything else."""
    is_name = isinstance(name_or_path, (str, Path)) and 0 < len(str(name_or_path)) <= LONGEST_PATH
    if not is_name or "\0" in str(name_or_path):
        raise ModelError(f"no model is called {shown(name_or_path)}: give a folder, or a hub id such as 'gpt2'")
    return str(name_or_path)


def _check_tokenizer(tokenizer: Any, shape: ModelShape, source: str) -> None:
    """Raise `ModelError` for a tokenizer of another model. It may have fewer tokens: vocabularies are padded."""
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ModelError(f"the model {source!r} cannot be read: it has no tokenizer.json, from which text is streamed")
    if len(tokenizer) > shape.vocab_size:
        raise ModelError(
            f"the tokenizer in {source!r} has {len(tokenizer)} tokens, the model {shape.vocab_size}: it is of another "
            "model, take this one's own"
        )


def _config(source: str) -> PreTrainedConfig:
    if os.path.isfile(source):
        raise ModelError(f"{source!r} is a file: give the folder that holds the model")
    if not os.path.isdir(source) and (Path(source).is_absolute() or source.startswith(".") or source.count("/") > 1):
        raise ModelError(f"there is no model folder {source!r}: give one that is there, or a hub id such as 'gpt2'")
    if os.path.isdir(source) and not Path(source, "config.json").is_file():
        raise ModelError(f"the folder {source!r} holds no model: a Hugging Face model folder has a config.json")
    if os.path.isdir(source):
        check_json(Path(source))
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)  # else transformers would ask
    except Exception as error:
        if os.path.isdir(source):
            raise unreadable(f"the model {source!r}", error) from error
        reason = one_line(error)[:200]
        raise ModelError(
            f"the model {source!r} cannot be fetched (a hub id needs the network once): {reason}"
        ) from error
    if config.model_type not in LOADERS:
        known = ", ".join(map(repr, LOADERS))
        raise ModelError(f"{source!r} is a {config.model_type!r} model: the engine runs only {known}")
    return config


@contextmanager
def _quiet() -> Iterator[None]:
    """No bar, report or warning of transformers and its hub client: our own errors say what is wrong."""
    bar, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    hub_verbosity = hub_logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub_logging.set_verbosity(hub_verbosity)
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()


def from_transformers(
    model: GPT2LMHeadModel,
    tokenizer: Any,
    name: str = "gpt2",
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> GPT2:
    """The engine's form of a `transformers` GPT-2, cast and moved once."""
    shape = _gpt2_shape(model.config, name)
    state = model.transformer.state_dict()
    weights = {}
    for parameter in shape.parameters():
        weights[parameter] = state[parameter].to(device=device, dtype=dtype)
        if not torch.isfinite(weights[parameter]).all():
            fits = torch.isfinite(state[parameter]).all()
            why = f"do not fit into {dtype}: load it in float32" if fits else f"are NaN or infinite: {ANEW}"
            raise ModelError(f"the model {name!r} cannot be used, weights of {parameter!r} {why}")
    return GPT2(shape, weights, tokenizer, name)


def _gpt2_shape(config: PreTrainedConfig, name: str) -> GPT2Shape:
    """The sizes of a GPT-2. Raises `ModelError` for a variant that the engine lacks, and for impossible sizes."""
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ModelError(f"{name!r} uses the activation {config.activation_function!r}: the engine has only 'gelu_new'")
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights or not config.tie_word_embeddings:
        raise ModelError(
            f"{name!r} is a variant of GPT-2 (attention scaling, untied output): the engine has only the plain one"
        )
    if config.n_inner not in (None, 4 * config.n_embd):
        raise ModelError(f"{name!r} has n_inner {config.n_inner}: the engine wants 4 x n_embd, {4 * config.n_embd}")
    try:
        return GPT2Shape(
            vocab_size=config.vocab_size,
            context=config.n_positions,
            width=config.n_embd,
            num_layers=config.n_layer,
            num_heads=config.n_head,
            layer_norm_eps=config.layer_norm_epsilon,
        )
    except ModelError as error:
        raise ModelError(f"the config of {name!r} cannot be used, {error}; {ANEW}") from error


def random_model(
    name: str = "gpt2",
    seed: int = 0,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
) -> Model:
    """A model of a known shape with seeded random weights, for measuring speed, which does not depend on the weights.

    Its tokenizer is the shipped model's, so nothing is downloaded.
    """
    if not isinstance(name, str) or name not in RANDOM_SHAPES:
        raise ModelError(f"no random model is called {shown(name)}: give one of {', '.join(RANDOM_SHAPES)}")
    device = resolve_device(device)
    dtype = resolve_dtype(dtype, device)
    if not is_count(seed, 0) or seed >= 2**63:
        raise ModelError(f"seed is {shown(seed)}: give a whole number from 0 to 2**63 - 1")
    shape = RANDOM_SHAPES[name]
    generator = torch.Generator().manual_seed(int(seed))
    weights = {}
    for parameter, size in shape.parameters().items():
        if parameter.endswith("bias"):
            value = torch.zeros(size)
        elif ".ln_" in f".{parameter}":
            value = torch.ones(size)
        else:
            value = torch.empty(size).normal_(std=0.02, generator=generator)
        weights[parameter] = value.to(device=device, dtype=dtype)
    return GPT2(shape, weights, AutoTokenizer.from_pretrained(SHIPPED_MODEL), f"random {name}")
