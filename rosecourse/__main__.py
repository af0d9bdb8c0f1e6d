"""The command line: `rosecourse <command>`, or `python -m rosecourse <command>` where nothing is installed."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Sequence
from functools import partial

import click

from .commands.benchmark import benchmark_scheduler, benchmark_streaming
from .commands.benchmark_serving import benchmark_serving
from .commands.benchmark_transformers import benchmark_transformers
from .commands.desk import desk
from .commands.doctor import doctor
from .commands.ending import ended
from .commands.generate import generate
from .commands.lab import lab
from .commands.serve import serve

COMMANDS = click.Group(
    commands=[
        *(lab, desk, generate, serve, doctor),
        *(benchmark_scheduler, benchmark_streaming, benchmark_serving, benchmark_transformers),
    ],
    help="A small LLM inference engine, and the course that grows it. Each command has --help.",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = " ".join(["rosecourse", *(word for word in words[:1] if word in COMMANDS.commands)])
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)  # an interrupt while Python ends does so at once
    return ended(name, partial(run, words))


def run(words: list[str]) -> int | None:
    """Run a command line; raises what goes wrong, and click's errors for bad flags."""
    try:
        with COMMANDS.make_context("rosecourse", words) as context:
            return COMMANDS.invoke(context)
    except click.exceptions.Exit as end:  # --help
        return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
