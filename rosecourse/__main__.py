"""The command line: `rosecourse <command>`, or `python -m rosecourse <command>` where nothing is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from .checks import require
from .commands.ending import ended, interrupts_leave, leave_at_the_end

COMMANDS = {
    "lab": "check a part that you have written, and race it against the course's",
    "desk": "make or renew my/, your copy of the notebooks",
    "generate": "complete a prompt",
    "benchmark_scheduler": "measure a scheduler",
    "benchmark_streaming": "measure what a reader of streamed tokens sees",
    "benchmark_transformers": "measure the engine against transformers generate",
    "record": "record every rung under each workload",
    "doctor": "say what was found on this machine, and what is missing",
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(["usage: rosecourse <command> [flags]", "", *lines, "", "Each command has --help."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; returns its exit code."""
    code = ended("rosecourse", partial(run_named, sys.argv[1:] if argv is None else argv))
    leave_at_the_end()
    return code


def run_named(argv: Sequence[str]) -> int:
    """Run the command that the first word names. Raises `ConfigError` where there is none of this name."""
    name, *flags = argv or [""]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    said = f"there is no command {name!r:.60}" if name else "no command is given"
    require(name in COMMANDS, f"{said}: give one of {', '.join(COMMANDS)} (see --help)")
    with interrupts_leave():
        # A command's module is imported when it is needed: `doctor` runs even where packages are missing.
        command = import_module(f"rosecourse.commands.{name}")
    return command.main(flags)


if __name__ == "__main__":
    sys.exit(main())
