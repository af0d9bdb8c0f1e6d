"""What the commands share: flags, one-line errors, and files that are written whole or not at all.

This is the edge of the package, the only place that reads the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .config import EngineConfig
from .decode import DecodeParts
from .errors import ConfigError, RosecourseError
from .lessons import Lesson, lesson
from .lessons.forward.dense import DecodeForward as DenseForward
from .models.gpt2 import GPT2
from .models.load import DTYPES, load_model, random_model


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


def command(name: str, description: str) -> Parser:
    """The parser of `python -m rosecourse.<name>`."""
    return Parser(
        prog=f"python -m rosecourse.{name}",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )


def run(parser: Parser, main: Callable[[argparse.Namespace], None], argv: Sequence[str] | None = None) -> int:
    """Parse, run `main(args)`, and turn what goes wrong on purpose into one line and exit code 2."""
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:  # of --help (0) or of a bad flag (2)
        return int(end.code or 0)
    try:
        main(args)
    except RosecourseError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


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


def model_of(args: argparse.Namespace) -> GPT2:
    """The model that the flags name."""
    if args.random_weights is not None:
        return random_model(args.random_weights, args.seed, args.dtype, args.device)
    return load_model(args.hf_model_id, args.dtype, args.device)


def lesson_of(args: argparse.Namespace) -> Lesson:
    """The lesson that `--lesson` names."""
    return lesson(args.lesson)


def parts_of(args: argparse.Namespace) -> DecodeParts:
    """The parts of the lesson, over dense K and V unless `--paged-attn` is given."""
    parts = lesson_of(args).parts
    return parts if args.paged_attn else parts.with_(forward=DenseForward)


def config_of(args: argparse.Namespace, **more: Any) -> EngineConfig:
    """The engine's configuration as the flags have it."""
    return EngineConfig(
        block_size=args.block_size, num_blocks=args.num_blocks, prefix_cache=not args.no_prefix_cache, **more
    )


# -- files --------------------------------------------------------------------------------------------------------


def check_writable(path: Path | None) -> None:
    """Raise `ConfigError` now if `write_json` could not write there later; leaves nothing behind."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"--json {path} is a folder: give the name of a file")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        if path.exists():
            path.open("a").close()
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror}") from error


def write_json(path: Path | None, document: dict[str, Any]) -> None:
    """Write a document as a whole: a reader sees the old file or the new one, never a part."""
    if path is None:
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
        temporary = Path(file.name)
        try:
            json.dump(document, file, separators=(",", ":"), allow_nan=False)
            file.write("\n")
        except BaseException:
            temporary.unlink()
            raise
    temporary.chmod(0o644)
    os.replace(temporary, path)
