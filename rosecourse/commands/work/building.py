"""From a command's flags to what they describe: the model, the parts and the engine."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch

from ...checks import is_count, require, shown
from ...config import EngineConfig
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...lessons import LESSONS, Lesson, lesson
from ...lessons.dense import DecodeForward as DenseForward
from ...lessons.l035_blocks import KVBlockManager
from ...models.load import load_model, random_model
from ...models.shape import Model, ModelShape
from ...models.tokenizer import check_length, longest_token
from ..flags import environment_settings

SMALL_WIDTH = 512  # in a narrower model, a small operation is done before two threads have found each other


def model_of(args: argparse.Namespace) -> Model:
    """The model that the flags name, with torch's threads set to suit it."""
    require_threads(args.threads)
    require(is_count(args.seed, 0) and args.seed < 2**63, f"seed is {shown(args.seed)}: give 0 to 2^63 - 1")
    if args.random_weights is not None:
        model = random_model(args.random_weights, args.seed, args.dtype, args.device)
    else:
        model = load_model(args.hf_model_id, args.dtype, args.device)
    set_threads(args.threads, model.shape)
    return model


def ids_of(prompt: str, model: Model) -> list[int]:
    """The token ids of a text, unless its length says that the model's context cannot hold it."""
    check_length(prompt, longest_token(model.tokenizer), model.shape.context - 1)
    return model.tokenizer.encode(prompt, verbose=False)


def require_threads(threads: int | None) -> None:
    """Raise `ConfigError` for a number of threads that cannot be."""
    require(threads is None or 1 <= threads <= 1024, f"threads is {shown(threads)}: give 1 to 1024")


def set_threads(threads: int | None, shape: ModelShape) -> None:
    """So many threads of torch; None: what suits a model of this shape, on this machine."""
    few = shape.width < SMALL_WIDTH or (os.cpu_count() or 1) <= 2
    if threads is not None or few:
        torch.set_num_threads(threads or 1)


def lesson_of(args: argparse.Namespace) -> Lesson:
    """The lesson that `--lesson` names."""
    return lesson(args.lesson)


def parts_of(args: argparse.Namespace) -> DecodeParts:
    """The parts of the lesson; with `--dense`, a forward over gathered K and V in place of the paged one.

    Raises `ConfigError` for `--dense` with a lesson whose cache the gathering forward cannot read.
    """
    rung = lesson_of(args)
    if not args.dense:
        return rung.after
    first, *_, last = (one.number for one in LESSONS if one.after.cache is KVBlockManager)
    told = f"--dense goes with lessons {first} to {last}, and this is lesson {rung.number}"
    require(rung.after.cache is KVBlockManager, f"{told}: add --lesson {last}, or leave --dense out")
    return rung.after.with_(forward=DenseForward)


def config_of(args: argparse.Namespace, **more: Any) -> EngineConfig:
    """The engine's configuration, from the flags and the environment."""
    return EngineConfig(
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        prefix_cache=not args.no_prefix_cache,
        **environment_settings(),
        **more,
    )


def engine_of(args: argparse.Namespace, model: Model, parts: DecodeParts, **more: Any) -> InferenceEngine:
    """The engine that the flags describe. more: further arguments of `EngineConfig`."""
    return InferenceEngine(model, config_of(args, **more), parts)
