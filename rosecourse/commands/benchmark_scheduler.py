"""rosecourse benchmark_scheduler: throughput of a scheduler when all requests are there from the start."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import add_benchmark_flags, add_samples_flag
from .parser import Parser, command_parser, run_command, work_of

NAME = "benchmark_scheduler"
MODES = ("online", "offline")


def make_parser() -> Parser:
    parser = command_parser(NAME, "Measure a scheduler: continuous batching (online) or static batches (offline).")
    parser.add_argument("--mode", choices=MODES, default="online", help="continuous batching, or static batches")
    add_samples_flag(parser)
    add_benchmark_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
