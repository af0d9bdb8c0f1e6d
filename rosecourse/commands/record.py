"""rosecourse record: all rungs of the ladder under one workload after another, written to data/results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .flags import add_articles_flags
from .parser import Parser, command_parser, run_command, work_of

NAME = "record"
MIXED, STEPS = "D", "steps"
ARTICLES = ("A", "B", "C", "E", "F", "C-one", "C-threads", "C-asyncio")  # as in `lessons.workloads`
WORKLOADS = (*ARTICLES, MIXED, STEPS)


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Record every rung of the ladder under each workload, in rounds that run all of them in turn."
    )
    parser.add_argument(
        "--workloads", default=",".join(WORKLOADS), metavar="X,Y", help="which, in this order, and the steps last"
    )
    parser.add_argument(
        "--from",
        metavar="NNN",
        help="begin with the engine after this lesson, in files of their own (default: the whole ladder)",
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="rounds that count, after one that warms up, or two for D"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="begin no round that would not end in time; the next call goes on"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder of the results (default: data/results)")
    parser.add_argument("--force", action="store_true", help="record anew what is there for this commit and settings")
    parser.add_argument(
        "--commit", metavar="SHA", help="where there is no git: the source's commit, with -dirty if it has been changed"
    )
    add_articles_flags(parser, "as in the articles")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
