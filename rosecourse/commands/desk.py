"""rosecourse desk: make or renew my/, the learner's copy of the notebooks. `make lab` and `make reset` call it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..desk.copies import Copies
from ..desk.places import repository
from ..desk.status import status_of
from .parser import Parser, command_parser, run_command


def make_parser() -> Parser:
    parser = command_parser(
        "desk",
        "Make my/, your copy of the notebooks, or renew it: new lessons are added, and those that you have not changed "
        "are brought up to date. Run it in the course's repository.",
    )
    parser.add_argument(
        "--reset",
        metavar="NNN",
        help="bring only this lesson's notebook back as the course has it, and keep yours beside it",
    )
    return parser


def desk(args: argparse.Namespace) -> None:
    """Make, renew or reset copies, and say which."""
    copies = Copies(repository(Path.cwd()))
    for line in copies.renew() if args.reset is None else [copies.reset(args.reset)]:
        print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, or 2 for bad input."""
    return run_command(make_parser(), desk, argv)


class ShowStatus(argparse.Action):
    """A flag that shows the learner's progress and ends the command, as --help does."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        print(status_of(repository(Path.cwd())))
        parser.exit()
