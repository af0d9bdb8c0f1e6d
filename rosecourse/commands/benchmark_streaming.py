"""rosecourse benchmark_streaming: what a reader of streamed tokens sees, TTFT, TPOT and ITL."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..measure.workload import run_streaming
from .benchmark import add_benchmark_flags, measure
from .parser import command, run
from .summary import print_streaming_summary

NAME = "benchmark_streaming"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = command(NAME, "Measure streaming: requests arrive on a schedule, and their tokens are read as they come.")
    add_benchmark_flags(parser, num_requests=32, max_new_tokens=64)

    def benchmark(args: argparse.Namespace) -> None:
        print_streaming_summary(measure(parser, args, run_streaming))

    return run(parser, benchmark, argv)
