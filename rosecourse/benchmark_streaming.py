"""python -m rosecourse.benchmark_streaming: what a reader of streamed tokens sees, TTFT, TPOT and ITL."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .arguments import command
from .bench.command import add_benchmark_flags, measure
from .bench.report import print_streaming_summary
from .bench.workload import run_streaming
from .cli import run

NAME = "benchmark_streaming"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = command(NAME, "Measure streaming: requests arrive on a schedule, and their tokens are read as they come.")
    add_benchmark_flags(parser, num_requests=32, max_new_tokens=64)

    def benchmark(args: argparse.Namespace) -> None:
        print_streaming_summary(measure(parser, args, run_streaming))

    return run(parser, benchmark, argv)


if __name__ == "__main__":
    sys.exit(main())
