"""rosecourse benchmark_streaming: what a reader of streamed tokens sees, TTFT, TPOT and both ITLs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..measure.workload import run_streaming
from .benchmark import add_benchmark_flags, measure_and_write
from .flags import add_readers_flag
from .parser import command_parser, run_command
from .summary import print_streaming_summary

NAME = "benchmark_streaming"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = command_parser(
        NAME, "Measure streaming: requests arrive on a schedule, and their tokens are read as they come."
    )
    add_readers_flag(parser)
    add_benchmark_flags(parser)

    def benchmark(args: argparse.Namespace) -> None:
        measured = measure_and_write(parser, args, run_streaming, readers=args.readers)
        print_streaming_summary(args.readers, measured)

    return run_command(parser, benchmark, argv)
