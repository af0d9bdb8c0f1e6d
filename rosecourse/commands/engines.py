"""From a command's flags to what they describe: the model, the parts and the engine. This imports torch."""

from __future__ import annotations

import os
from typing import Any

import torch

from ..config import EngineConfig
from ..decode import DecodeParts
from ..engine.engine import InferenceEngine
from ..lessons import lesson
from ..lessons.dense import DecodeForward as DenseForward
from ..measure.provenance import provenance
from ..models.encoding import check_length, longest_token
from ..models.load import load_model, random_model
from ..models.shape import Model, ModelShape
from .options import Flags, command_line

SMALL_WIDTH = 512  # in a narrower model, a small operation is done before two threads have found each other

KV_APPEND = ("triton_kv_append_min_batch", "triton_kv_append_full_batch_min_batch")  # flags of the environment


def model_of(flags: Flags) -> Model:
    """The model that the flags name, with torch's threads set to suit it."""
    if flags.random_weights is not None:
        model = random_model(flags.random_weights, flags.seed, flags.dtype, flags.device)
    else:
        model = load_model(flags.hf_model_id, flags.dtype, flags.device)
    set_threads(flags.threads, model.shape)
    return model


def set_threads(threads: int | None, shape: ModelShape) -> None:
    """So many threads of torch; None: what suits a model of this shape, on this machine."""
    few = shape.width < SMALL_WIDTH or (os.cpu_count() or 1) <= 2
    if threads is not None or few:
        torch.set_num_threads(threads or 1)


def ids_of(prompt: str, model: Model) -> list[int]:
    """The token ids of a text, unless its length says that the model's context cannot hold it."""
    check_length(prompt, longest_token(model.tokenizer), model.shape.context - 1)
    return model.tokenizer.encode(prompt, verbose=False)


def parts_of(flags: Flags) -> DecodeParts:
    """The parts of the lesson; with `--dense`, a forward over gathered K and V in place of the paged one."""
    parts = lesson(flags.lesson).after
    return parts.with_(forward=DenseForward) if flags.dense else parts


def config_of(flags: Flags, **more: Any) -> EngineConfig:
    """The engine's configuration. more: further arguments of `EngineConfig`."""
    names = ("block_size", "num_blocks", "nvtx", *KV_APPEND)
    known = {name: vars(flags)[name] for name in names}
    return EngineConfig(prefix_cache=not flags.no_prefix_cache, **known, **more)


def engine_of(flags: Flags, model: Model, **more: Any) -> InferenceEngine:
    """The engine that the flags describe. more: further arguments of `EngineConfig`."""
    return InferenceEngine(model, config_of(flags, **more), parts_of(flags))


def head(flags: Flags) -> dict[str, Any]:
    """What each JSON document begins with."""
    return {"command": command_line(flags.settings), **provenance(), "settings": flags.settings}
