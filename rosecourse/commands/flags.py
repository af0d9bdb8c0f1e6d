"""What the commands share: flags, and errors that are one line.

This is the edge of the package, the only place that reads the environment.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from ..checks import is_count, require, shown
from ..config import EngineConfig
from ..decode import DecodeParts
from ..engine.engine import InferenceEngine
from ..errors import ConfigError, RequestError
from ..lessons import Lesson, lesson
from ..lessons.forward.dense import DecodeForward as DenseForward
from ..models.load import DTYPES, load_model, random_model
from ..models.shape import Model
from .parser import Parser

MOST = 1_000_000  # requests, runs, pairs, threads


SMALL_WIDTH = 512  # a model less wide computes a small operation faster than two threads find each other


# -- flags --------------------------------------------------------------------------------------------------------


def add_model_flags(parser: Parser) -> None:
    """Which model, on which device."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--hf-model-id", metavar="ID", help="a Hugging Face folder or hub id (default: the shipped one)")
    which.add_argument("--random-weights", metavar="NAME", help="a shape with random weights, such as gpt2: for speed")
    group.add_argument("--device", default="auto", help="auto, cpu or cuda")
    group.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, float16 on CUDA")
    group.add_argument("--seed", type=int, default=0, help="of the random weights, and of sampling")
    group.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads that share an operation (default: 1 for a small model and on two cores, where threads mostly "
        "wait for each other, else what torch takes)",
    )


def add_engine_flags(parser: Parser) -> None:
    """Which engine: the lesson's parts and the cache."""
    group = parser.add_argument_group("engine")
    group.add_argument("--lesson", default="best", metavar="NNN", help="the engine as it is after a lesson, or best")
    group.add_argument("--block-size", type=int, default=64, help="tokens in a KV block, a power of two")
    group.add_argument("--num-blocks", type=int, help="KV blocks per layer (default: what the batch can need)")
    group.add_argument(
        "--no-prefix-cache", action="store_true", help="share no blocks between prompts that begin alike"
    )


def add_json_flag(parser: Parser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write command, host, versions and raw samples there")


def check_counts(args: argparse.Namespace, leasts: dict[str, int]) -> None:
    """Raise `ConfigError` for a flag's number that is below its least, or beyond what any machine gets done."""
    for flag, least in leasts.items():
        value = getattr(args, flag)
        require(value is None or value >= least, f"{flag} is {shown(value)}: give {least} or more")
        require(value is None or value <= MOST, f"{flag} is {shown(value)}: give at most {MOST}")


def model_of(args: argparse.Namespace) -> Model:
    """The model that the flags name, and the threads for it."""
    require(args.threads is None or 1 <= args.threads <= 1024, f"threads is {shown(args.threads)}: give 1 to 1024")
    require(is_count(args.seed, 0) and args.seed < 2**63, f"seed is {shown(args.seed)}: give 0 to 2^63 - 1")
    if args.random_weights is not None:
        model = random_model(args.random_weights, args.seed, args.dtype, args.device)
    else:
        model = load_model(args.hf_model_id, args.dtype, args.device)
    few = model.shape.width < SMALL_WIDTH or (os.cpu_count() or 1) <= 2
    if args.threads is not None or few:
        torch.set_num_threads(args.threads or 1)
    return model


def lesson_of(args: argparse.Namespace) -> Lesson:
    """The lesson that `--lesson` names."""
    return lesson(args.lesson)


def parts_of(args: argparse.Namespace) -> DecodeParts:
    """The parts of the lesson, over dense K and V unless `--paged-attn` is given."""
    parts = lesson_of(args).after
    return parts if args.paged_attn else parts.with_(forward=DenseForward)


def config_of(args: argparse.Namespace, **more: Any) -> EngineConfig:
    """The engine's configuration as the flags have it."""
    return EngineConfig(
        block_size=args.block_size,
        num_blocks=args.num_blocks,
        prefix_cache=not args.no_prefix_cache,
        triton_kv_append_min_batch=from_environment("ROSELLM_TRITON_KV_APPEND_MIN_BATCH", 128),
        triton_kv_append_full_batch_min_batch=from_environment("ROSELLM_TRITON_KV_APPEND_FULL_BATCH_MIN_BATCH", None),
        nvtx=os.environ.get("ROSEINFER_NVTX") == "1",
        **more,
    )


def from_environment(name: str, default: int | None) -> int | None:
    """A whole number of the environment, which the articles' engine reads too."""
    text = os.environ.get(name)
    try:
        return default if text is None else int(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}: give a whole number, or unset it") from None


def engine_of(args: argparse.Namespace, model: Model, parts: DecodeParts, **more: Any) -> InferenceEngine:
    """The engine that the flags describe."""
    return InferenceEngine(model, config_of(args, **more), parts)


def text_of(prompt: str) -> str:
    """The prompt, `-` read from standard input (less the line break at its end). Refuses what is not UTF-8."""
    try:
        text = prompt if prompt != "-" else sys.stdin.read().removesuffix("\n")
        text.encode()
    except UnicodeError:
        raise RequestError("the prompt is not UTF-8 text") from None
    return text


def flags_of(args: argparse.Namespace) -> dict[str, Any]:
    """Every flag's value, for a document: without the file that it goes to, and a model's folder by its name alone."""
    flags = {name: value for name, value in vars(args).items() if name != "json"}
    if flags["hf_model_id"] and Path(flags["hf_model_id"]).is_dir():
        flags["hf_model_id"] = Path(flags["hf_model_id"]).resolve().name
    return flags


def command_line(parser: Parser, args: argparse.Namespace) -> str:
    """The command that `args` came from, as it can be typed on another machine."""
    words = parser.prog.split()
    for name, value in flags_of(args).items():
        if value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return shlex.join(words)
