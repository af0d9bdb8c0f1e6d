"""rosecourse benchmark_transformers: the engine against `transformers` generate, in one process."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import add_engine_flags, add_json_flag, add_model_flags
from .parser import Parser, command_parser, run_command, work_of

NAME = "benchmark_transformers"


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Measure the engine against transformers generate: the same tokens, interleaved runs, an interval."
    )
    parser.add_argument("--batch-size", type=int, default=16, help="requests that are decoded together")
    parser.add_argument("--prompt-tokens", type=int, default=8, help="length of the random prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="completion tokens per request")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs that count")
    parser.add_argument("--static-cache", action="store_true", help="let transformers use a cache of a fixed size")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="and compile its forward by torch.compile, which takes up to some minutes (needs --static-cache)",
    )
    add_json_flag(parser)
    add_model_flags(parser)
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
