"""rosecourse benchmark_streaming: what a reader of streamed tokens sees, TTFT, TPOT and both ITLs."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import add_benchmark_flags, add_readers_flag
from .parser import Parser, command_parser, run_command, work_of

NAME = "benchmark_streaming"


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Measure streaming: requests arrive on a schedule, and their tokens are read as they come."
    )
    add_readers_flag(parser)
    add_benchmark_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
