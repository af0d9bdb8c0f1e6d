"""Run a scheduler on requests that are there from the start, and print what it measured."""

from __future__ import annotations

import argparse

from ...measure.workload import run_offline, run_scheduler
from ..benchmark_scheduler import make_parser
from ..flags import require_counts
from .benchmark import measure_and_write
from .summary import print_scheduler_summary

RUNNERS = {"online": run_scheduler, "offline": run_offline}


def run(args: argparse.Namespace) -> None:
    """Measure the workload that the flags describe, and print the summary."""
    require_counts(args, {"samples": 1})
    print_scheduler_summary(args.mode, measure_and_write(make_parser(), args, RUNNERS[args.mode], args.samples))
