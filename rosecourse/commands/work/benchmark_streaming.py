"""Stream to readers, and print what they saw."""

from __future__ import annotations

import argparse

from ...measure.workload import run_streaming
from ..benchmark_streaming import make_parser
from .benchmark import measure_and_write
from .summary import print_streaming_summary


def run(args: argparse.Namespace) -> None:
    """Measure the workload that the flags describe, and print the summary."""
    measured = measure_and_write(make_parser(), args, run_streaming, readers=args.readers)
    print_streaming_summary(args.readers, measured)
