"""rosecourse benchmark_streaming: what a reader of streamed tokens sees, TTFT, TPOT and both ITLs."""

from __future__ import annotations

import click

from .late import benchmark, summary, workload
from .options import Flags, benchmark_options, command

READERS = ("sequential", "threads", "one", "asyncio")  # as in `measure.readers`


@command
@click.option(
    "--readers",
    type=click.Choice(READERS),
    default="sequential",
    help="Who reads the streams: one after the other once all are submitted, a thread for each, one thread for all, or "
    "a coroutine for each.",
)
@benchmark_options
def benchmark_streaming(flags: Flags) -> None:
    """Measure what a reader of streamed tokens sees.

    Requests arrive on a schedule, and their tokens are read as they come.
    """
    measured = benchmark.measured(flags, workload.run_streaming, readers=flags.readers)
    summary.print_streaming_summary(flags.readers, measured)
