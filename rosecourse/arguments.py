"""The command lines' parser: one line for what is wrong. It needs nothing that must be installed."""

from __future__ import annotations

import argparse
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see --help)\n")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


def one_line(message: object) -> str:
    """A message without line breaks, whatever a flag's value brought into it."""
    return " ".join(str(message).split()) or type(message).__name__


def command(name: str, description: str) -> Parser:
    """The parser of `python -m rosecourse.<name>`."""
    return Parser(
        prog=f"python -m rosecourse.{name}",
        description=description,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
