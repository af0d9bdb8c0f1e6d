"""The command line: `rosecourse <command>`, or `python -m rosecourse <command>` where nothing is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import click

from .commands.benchmark_ladder import benchmark_ladder
from .commands.benchmark_scheduler import benchmark_scheduler
from .commands.benchmark_streaming import benchmark_streaming
from .commands.benchmark_transformers import benchmark_transformers
from .commands.desk import desk
from .commands.doctor import doctor
from .commands.ending import ended, leave_at_the_end
from .commands.generate import generate
from .commands.lab import lab
from .commands.record import record

BENCHMARKS = (benchmark_scheduler, benchmark_streaming, benchmark_transformers, benchmark_ladder)
COMMANDS = click.Group(
    commands=[lab, desk, generate, *BENCHMARKS, record, doctor],
    help="A small LLM inference engine, and the course that grows it. Each command has --help.",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["rosecourse", *(word for word in words[:1] if word in COMMANDS.commands)])
    code = ended(name, partial(run, words))
    leave_at_the_end()
    return code


def run(words: list[str]) -> int | None:
    """Run a command line; raises what goes wrong, and click's errors for bad flags."""
    try:
        with COMMANDS.make_context("rosecourse", words) as context:
            return COMMANDS.invoke(context)
    except click.exceptions.Exit as end:  # --help
        return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
