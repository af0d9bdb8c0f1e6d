"""The parser of every command: what is wrong is told in one line. It needs nothing that must be installed."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ..checks import one_line
from .ending import ended, interrupts_leave

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and the first of them is about what it does not know."""

    def parsed(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments. An unknown one is told before a missing one: it may be that one, with a slip in it."""
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        try:
            self.parse_args(argv)
        finally:
            for action in required:
                action.required = True
        return self.parse_args(argv)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """As argparse, which takes the value of `--flag=--` for none, and makes a list of it."""
        if arg_strings != ["--"] or not action.option_strings:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see --help)\n")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help. Raises `OSError` where it cannot be written, which argparse would not say."""
        print(self.format_help(), end="", file=file)


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


def work_of(name: str) -> Callable[[argparse.Namespace], int | None]:
    """What a command does once its flags are parsed: `run` of a module that is not imported before it is called.

    Importing torch takes seconds, which neither `--help` nor a bad flag should cost.
    """

    def work(args: argparse.Namespace) -> int | None:
        with interrupts_leave():
            module = import_module(f"rosecourse.commands.work.{name}")
        return module.run(args)

    return work


def run_command(
    parser: Parser, work: Callable[[argparse.Namespace], int | None], argv: Sequence[str] | None = None
) -> int:
    """Parse, call `work(args)`, and return the exit code: see `ended`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character shows a question mark

    def parsed() -> int | None:
        try:
            args = parser.parsed(argv)
        except SystemExit as end:  # --help (0) or a bad flag (2)
            return int(end.code or 0)
        return work(args)

    return ended(parser.prog, parsed)
