"""rosecourse benchmark_scheduler: throughput of a scheduler when all requests are there from the start."""

from __future__ import annotations

import click

from .late import benchmark, summary, workload
from .options import Flags, benchmark_options, command, samples_option


@command
@click.option(
    "--mode", type=click.Choice(["online", "offline"]), default="online", help="Continuous or static batches."
)
@samples_option
@benchmark_options
def benchmark_scheduler(flags: Flags) -> None:
    """Measure a scheduler.

    Batches are continuous (online) or static (offline); all requests are there from the start.
    """
    runner = workload.run_scheduler if flags.mode == "online" else workload.run_offline
    summary.print_scheduler_summary(flags.mode, benchmark.measured(flags, runner, samples=flags.samples))
