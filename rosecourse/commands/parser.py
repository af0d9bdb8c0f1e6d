"""The parser of every command: what is wrong is told in one line. It needs nothing that must be installed."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ..checks import one_line
from ..errors import RosecourseError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see --help)\n")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def command_parser(name: str, description: str) -> Parser:
    """The parser of `rosecourse <name>`."""
    return Parser(
        prog=f"rosecourse {name}",
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )


def run_command(
    parser: Parser, work: Callable[[argparse.Namespace], int | None], argv: Sequence[str] | None = None
) -> int:
    """Parse, call `work(args)`, and turn bad input, a full disk and a full memory into one line and exit code 2.

    Returns the exit code: what `work` returns, None being 0; 2; 130 for an interruption; or 141 where the reader of the
    output has gone.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:  # --help (0) or a bad flag (2)
        return int(end.code or 0)
    try:
        code = work(args)
        flush_output()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone: there is nobody to tell
        drop_output()
        return 141
    except expected_errors() as error:
        try:
            flush_output()  # what was said before the error comes first
        except OSError:
            drop_output()
        print(f"{parser.prog}: error: {one_line(error)}", file=sys.stderr)
        return 2
    return code or 0


def expected_errors() -> tuple[type[Exception], ...]:
    """The exceptions for bad input, a full disk and a full memory, and torch's for a full device if it is imported."""
    torch = sys.modules.get("torch")
    of_torch = (torch.OutOfMemoryError,) if torch is not None else ()
    return (RosecourseError, OSError, MemoryError, *of_torch)


def flush_output() -> None:
    if sys.stdout is not None:  # the caller may have closed it
        sys.stdout.flush()


def drop_output() -> None:
    """Send the rest to nowhere: standard output takes nothing more, and Python would try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
