"""Models from a folder, from the Hugging Face hub, or with random weights."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download

from ..checks import is_count, one_line, shown
from ..config import DATA
from ..errors import ModelError
from .configs import shape_of
from .folder import CHAT_TEMPLATE, CONFIG, HEAD, REMEDY, ModelFolder, embedding_of, read_json
from .gpt2 import GPT2, GPT2Shape
from .llama import Llama, Llama3Scaling, LlamaShape
from .shape import Model, ModelShape
from .tokenizer import tokenizer_of

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
KINDS: dict[type, Any] = {GPT2Shape: GPT2, LlamaShape: Llama}
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
        known = torch.device("meta")
    if known.type not in ("cpu", "cuda"):
        raise ModelError(f"no device is called {shown(device)}: give 'auto', 'cpu' or 'cuda'")
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

    dtype: `float32`, `float16` or `bfloat16`; None: see `resolve_dtype`. Raises `ModelError` for a folder that is
    missing, damaged or of another architecture, a hub id that cannot be fetched, or a device that is not there. Only
    safetensors are read, and no code of the model's own is run.
    """
    device = resolve_device(device)
    name = SHIPPED_MODEL.name if name_or_path is None else name_or_path
    folder = _folder(SHIPPED.get(name, name) if isinstance(name, str) else name)
    config = read_json(folder.path / CONFIG)
    dtype = resolve_dtype(dtype, device, config.get("dtype", config.get("torch_dtype")))
    shape = shape_of(config, folder.source)
    folder.check_weights(shape)
    weights = _cast(folder.weights(), shape, folder.name, dtype, device)
    model: Any = KINDS[type(shape)](shape, weights, tokenizer_of(folder), folder.name)
    model.eos_token_id, model.folder = folder.eos_token_id(), folder.path
    return model


def _folder(name_or_path: str | Path) -> ModelFolder:
    """The folder that a path names, or for a hub id the one in the hub's cache, fetched if it is not there."""
    if not isinstance(name_or_path, str | Path):
        raise ModelError(f"no model is called {shown(name_or_path)}: give a folder, or a hub id such as 'gpt2'")
    source = os.path.expanduser(str(name_or_path))
    if os.path.isdir(source):
        if not Path(source, CONFIG).exists():
            raise ModelError(f"the folder {source!r} holds no model: a Hugging Face model folder has a {CONFIG}")
        return ModelFolder(Path(source), source)
    if os.path.exists(source):
        raise ModelError(f"{source!r} is a file: give the folder that holds the model")
    try:
        return ModelFolder(
            Path(snapshot_download(source, allow_patterns=["*.json", CHAT_TEMPLATE, "model*.safetensors"])), source
        )
    except Exception as error:  # the hub's client raises many kinds: all of them mean the same here
        raise ModelError(
            f"there is no model folder {shown(source)}, and it cannot be fetched (a hub id needs the network once): "
            f"{one_line(error)[:200]}"
        ) from error


def _cast(
    state: Mapping[str, torch.Tensor], shape: ModelShape, name: str, dtype: torch.dtype, device: torch.device
) -> dict[str, torch.Tensor]:
    """The weights of a model, moved and cast. Raises `ModelError` for numbers that are not finite, and for an output
    projection other than the token embedding where the family or the config has none."""
    weights = {parameter: state[parameter].to(device=device, dtype=dtype) for parameter in shape.parameters()}
    for parameter, weight in weights.items():
        if not torch.isfinite(weight).all():
            raise ModelError(
                f"the model {name!r} cannot be used, weights of {parameter!r} are NaN or infinite in {dtype}: load it "
                f"in float32, or {REMEDY}"
            )
    embedding = embedding_of(weights)
    if HEAD in state and HEAD not in weights and not torch.equal(state[HEAD], state[embedding]):
        raise ModelError(
            f"the model {name!r} has an output projection {HEAD!r} of its own: by its family and config it is "
            f"{embedding!r}"
        )
    return weights


def random_model(name: str = "gpt2", seed: int = 0, dtype: Dtype = None, device: Device = "auto") -> Model:
    """A model of a known shape with seeded random weights, for measuring speed, with the shipped model's tokenizer."""
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
    return KINDS[type(shape)](
        shape, weights, tokenizer_of(ModelFolder(SHIPPED_MODEL, str(SHIPPED_MODEL))), f"random {name}"
    )
