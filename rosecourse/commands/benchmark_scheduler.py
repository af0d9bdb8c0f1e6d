"""rosecourse benchmark_scheduler: throughput of a scheduler when all requests are there from the start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..measure.workload import run_offline, run_scheduler
from .benchmark import add_benchmark_flags, measure_and_write
from .flags import add_samples_flag, require_counts
from .parser import command_parser, run_command
from .summary import print_scheduler_summary

NAME = "benchmark_scheduler"
MODES = {"online": run_scheduler, "offline": run_offline}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = command_parser(NAME, "Measure a scheduler: continuous batching (online) or static batches (offline).")
    parser.add_argument("--mode", choices=MODES, default="online", help="continuous batching, or static batches")
    add_samples_flag(parser)
    add_benchmark_flags(parser)

    def benchmark(args: argparse.Namespace) -> None:
        require_counts(args, {"samples": 1})
        print_scheduler_summary(args.mode, measure_and_write(parser, args, MODES[args.mode], args.samples))

    return run_command(parser, benchmark, argv)
