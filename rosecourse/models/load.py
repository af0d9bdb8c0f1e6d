"""Models from a folder, from the Hugging Face hub, or with random weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.utils import logging as hub_logging
from transformers import GPT2Config
from transformers.utils import logging

from ..checks import is_count, one_line, shown
from ..config import DATA
from ..errors import ModelError
from .folder import ANEW, CONFIG, FILES, HEAD, ModelFolder, check_headers, embedding_of, refused, used_weights
from .gpt2 import GPT2, GPT2Shape
from .llama import Llama, Llama3Scaling, LlamaShape
from .llama_config import FAMILIES, llama_shape
from .shape import Model, ModelShape
from .tokenizer import tokenizer_of

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel  # its import takes longer than loading the model

SHIPPED_MODEL = DATA / "tiny-gpt2"
SHIPPED = {path.name: path for path in (SHIPPED_MODEL, DATA / "tiny-llama")}
LLAMA_3_1, LLAMA_3_2 = (Llama3Scaling(factor, 1.0, 4.0, 8192) for factor in (8.0, 32.0))
RANDOM_SHAPES: dict[str, GPT2Shape | LlamaShape] = {
    "gpt2": GPT2Shape(vocab_size=50257, context=1024, width=768, num_layers=12, num_heads=12),
    "gpt2-medium": GPT2Shape(vocab_size=50257, context=1024, width=1024, num_layers=24, num_heads=16),
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M/blob/main/config.json
    "smollm2-135m": LlamaShape(49152, 8192, 576, 1536, 30, 9, 3, 64, rope_theta=100_000.0, tied=True),
    # https://huggingface.co/meta-llama/Llama-3.2-1B/blob/main/config.json
    "llama-1b": LlamaShape(
        128256, 131072, 2048, 8192, 16, 32, 8, 64, rope_theta=5e5, rope_scaling=LLAMA_3_2, tied=True
    ),
    # https://huggingface.co/meta-llama/Llama-3.1-8B/blob/main/config.json
    "llama-8b": LlamaShape(128256, 131072, 4096, 14336, 32, 32, 8, 128, rope_theta=5e5, rope_scaling=LLAMA_3_1),
}
LONGEST_PATH = 4096  # characters
SIZES = {  # what `GPT2Config` calls them, and what the engine does
    "vocab_size": "vocab_size",
    "n_positions": "context",
    "n_embd": "width",
    "n_layer": "num_layers",
    "n_head": "num_heads",
    "layer_norm_epsilon": "layer_norm_eps",
}
PLAIN = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "quantization_config": None}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

Device = str | torch.device
Dtype = str | torch.dtype | None


def resolve_device(device: Device = "auto") -> torch.device:
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
            f"there is no {str(device)!r} on this machine: as the device give 'cpu', or 'auto' to take what is there"
        )
    return known


def resolve_dtype(dtype: Dtype, device: torch.device, saved: Any = None) -> torch.dtype:
    """None is float32 on a CPU and float16 on CUDA, where what was saved in bfloat16 stays so."""
    if dtype is None:
        half = torch.bfloat16 if saved == "bfloat16" else torch.float16
        return half if device.type == "cuda" else torch.float32
    known = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if not isinstance(known, torch.dtype) or known not in DTYPES.values():
        raise ModelError(f"the engine does not compute in {shown(dtype)}: give one of {', '.join(DTYPES)}")
    return known


def load_model(name_or_path: str | Path | None = None, dtype: Dtype = None, device: Device = "auto") -> Model:
    """A model that ships with the course, `tiny-gpt2` (None) or `tiny-llama`; one from a folder; or a hub id, `gpt2`.

    dtype: `float32`, `float16` or `bfloat16`; None is float32 on a CPU; on CUDA it is float16, or
    bfloat16 where the model was saved in that. The weights are cast once.
    Raises `ModelError` for a folder that is missing, damaged or of another architecture, a hub id that cannot be
    fetched, or a device that is not there. Only safetensors are read, and no code of the model's own is run.
    """
    device = resolve_device(device)
    resolve_dtype(dtype, device)
    name = SHIPPED_MODEL.name if name_or_path is None else name_or_path
    folder = _folder(SHIPPED.get(name, name) if isinstance(name, str) else name)
    folder.check()
    config = folder.config()
    dtype = resolve_dtype(dtype, device, config.get("dtype", config.get("torch_dtype")))
    family = config.get("model_type")
    if not isinstance(family, str):
        raise refused(folder.path / CONFIG, "it names no model_type")
    if family not in LOADERS:
        known = ", ".join(map(repr, LOADERS))
        raise ModelError(f"{folder.source!r} is a {shown(family)} model: the engine runs only {known}")
    return LOADERS[family](folder, config, dtype, device)


def _load_gpt2(folder: ModelFolder, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Model:
    known = _gpt2_config(config, folder.source)
    return _load(GPT2, folder, _gpt2_shape(known, folder.source), known.tie_word_embeddings, dtype, device)


def _load_llama(folder: ModelFolder, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> Model:
    with quiet():
        shape = llama_shape(config, folder.source)
    return _load(Llama, folder, shape, shape.tied, dtype, device)


def _load(kind: Any, folder: ModelFolder, shape: Any, tied: bool, dtype: torch.dtype, device: torch.device) -> Any:
    """A model of a class and a shape from a folder. tied: what the config says of the output projection."""
    folder.check_weights(shape)
    tokenizer = tokenizer_of(folder)
    if len(tokenizer) > shape.vocab_size:  # it may have fewer: vocabularies are padded
        raise ModelError(
            f"the tokenizer in {folder.source!r} has {len(tokenizer)} tokens, the model {shape.vocab_size}: it is of "
            "another model, take this one's own"
        )
    weights = _cast(folder.weights(), shape, tied, folder.name, dtype, device)
    model = kind(shape, weights, tokenizer, folder.name)
    model.eos_token_id = folder.eos_token_id()
    model.folder = folder.path
    return model


# The families that the engine runs: by the `model_type` of config.json, loader(folder, config, dtype, device).
LOADERS: dict[str, Callable[[ModelFolder, Mapping[str, Any], torch.dtype, torch.device], Model]] = {
    "gpt2": _load_gpt2,
    **dict.fromkeys(FAMILIES, _load_llama),
}


def _folder(name_or_path: str | Path) -> ModelFolder:
    """The folder that a path names, or for a hub id the one in the hub's cache, fetched if it is not there."""
    source = os.path.expanduser(name_or_path) if isinstance(name_or_path, (str, Path)) else ""
    if not 0 < len(source) <= LONGEST_PATH or "\0" in source:
        raise ModelError(f"no model is called {shown(name_or_path)}: give a folder, or a hub id such as 'gpt2'")
    if os.path.isdir(source):
        if not os.path.lexists(Path(source, CONFIG)):
            raise ModelError(f"the folder {source!r} holds no model: a Hugging Face model folder has a {CONFIG}")
        return ModelFolder(Path(source), source)
    if os.path.exists(source):
        raise ModelError(f"{source!r} is a file: give the folder that holds the model")
    if Path(source).is_absolute() or source.startswith(".") or source.count("/") > 1:
        raise ModelError(f"there is no model folder {source!r}: give one that is there, or a hub id such as 'gpt2'")
    try:
        with quiet():
            return ModelFolder(Path(snapshot_download(source, allow_patterns=[*FILES, "model*.safetensors"])), source)
    except Exception as error:  # the hub's client raises many kinds: all of them mean the same here
        why = f"(a hub id needs the network once): {one_line(error)[:200]}"
        raise ModelError(f"the model {source!r} cannot be fetched {why}") from error


@contextmanager
def quiet() -> Iterator[None]:
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
    device: Device = "cpu",
) -> GPT2:
    """The engine's form of a `transformers` GPT-2, cast and moved once.

    Raises `ModelError` for a variant that the engine lacks, and for weights that it would not use.
    """
    shape = _gpt2_shape(model.config, name)
    state = used_weights(model.state_dict().items(), f"the model {name!r}")
    check_headers({weight: (list(value.shape), value.dtype) for weight, value in state.items()}, shape, repr(name))
    weights = _cast(state, shape, model.config.tie_word_embeddings, name, dtype, device)
    ours = GPT2(shape, weights, tokenizer, name)
    ours.eos_token_id = getattr(model.generation_config, "eos_token_id", None)  # a model without a head has no config
    return ours


def _cast(
    state: Mapping[str, torch.Tensor], shape: ModelShape, tied: bool, name: str, dtype: torch.dtype, device: Device
) -> dict[str, torch.Tensor]:
    """The weights of a model, moved and cast. Raises `ModelError` for numbers that are not finite, and for an output
    projection other than the token embedding. tied: what the config says of it, where `state` has none."""
    weights = {}
    for parameter in shape.parameters():
        exact = state[parameter].to(torch.float32)
        weights[parameter] = exact.to(device=device, dtype=dtype)
        if not torch.isfinite(weights[parameter]).all():
            fits = torch.isfinite(exact).all()
            why = f"do not fit into {dtype}: load it in float32" if fits else f"are NaN or infinite: {ANEW}"
            raise ModelError(f"the model {name!r} cannot be used, weights of {parameter!r} {why}")
    embedding = embedding_of(weights)
    if HEAD in weights:
        return weights
    if not (torch.equal(state[HEAD].float(), state[embedding].float()) if HEAD in state else tied):
        raise ModelError(
            f"the model {name!r} has an output projection {HEAD!r} of its own: by its family and config it is "
            f"{embedding!r}"
        )
    return weights


def _gpt2_config(fields: Mapping[str, Any], name: str) -> GPT2Config:
    """A config as `transformers` understands it, other names for a setting and defaults included.

    It sees the settings that the engine uses, and no others: some would fill the memory.
    """
    used = {*SIZES, *PLAIN, "activation_function", "n_inner", "tie_word_embeddings"}
    used |= {other for other, name in GPT2Config.attribute_map.items() if name in used}
    try:
        with quiet():  # it wonders about ends of text that it was not shown
            return GPT2Config.from_dict({name: value for name, value in fields.items() if name in used})
    except Exception as error:  # its checks raise many kinds: all of them mean the same here
        raise ModelError(f"the config of {name!r} cannot be used, {one_line(error)[:200]}; {ANEW}") from error


def _gpt2_shape(config: GPT2Config, name: str) -> GPT2Shape:
    """The sizes of a GPT-2. Raises `ModelError` for a variant that the engine lacks, and for impossible sizes."""
    activation = config.activation_function
    if activation not in ("gelu_new", "gelu_pytorch_tanh"):
        raise ModelError(f"{name!r} uses the activation {shown(activation)}: the engine has only 'gelu_new'")
    for field, value in PLAIN.items():
        if getattr(config, field, value) is not value:
            raise ModelError(f"{name!r} has {field} {shown(getattr(config, field))}: the engine has only plain GPT-2")
    try:
        shape = GPT2Shape(**{name: getattr(config, field) for field, name in SIZES.items()})
    except ModelError as error:
        raise ModelError(f"the config of {name!r} cannot be used, {error}; {ANEW}") from error
    wide = 4 * shape.width
    if config.n_inner not in (None, wide):
        raise ModelError(f"{name!r} has n_inner {shown(config.n_inner)}: the engine wants 4 x n_embd, {wide}")
    return shape


def without_numbers(shape: GPT2Shape, dtype: torch.dtype) -> Model:
    """A GPT-2 of a shape on a device that holds no numbers: it can be asked for sizes."""
    weights = {name: torch.empty(size, dtype=dtype, device="meta") for name, size in shape.parameters().items()}
    return GPT2(shape, weights, None, "without numbers")


def random_model(name: str = "gpt2", seed: int = 0, dtype: Dtype = None, device: Device = "auto") -> Model:
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
    place = "cpu" if isinstance(shape, GPT2Shape) else device  # billions of numbers are drawn where they go
    generator = torch.Generator(place).manual_seed(int(seed))
    weights = {}
    for parameter, size in shape.parameters().items():
        value = torch.zeros(size, dtype=torch.float32, device=place)
        if not parameter.endswith("bias"):
            gain = len(size) == 1
            value = value.fill_(1.0) if gain else value.normal_(std=0.02, generator=generator)
        weights[parameter] = value.to(device=device, dtype=dtype)
    kind: Any = GPT2 if isinstance(shape, GPT2Shape) else Llama
    return kind(shape, weights, tokenizer_of(ModelFolder(SHIPPED_MODEL, str(SHIPPED_MODEL))), f"random {name}")
