"""rosecourse benchmark_ladder: rungs of the ladder under some workloads, in turns, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .flags import add_articles_flags, add_json_flag
from .parser import Parser, command_parser, run_command, work_of
from .record import ARTICLES, MIXED

NAME = "benchmark_ladder"
KNOWN = (*ARTICLES, MIXED)


def make_parser() -> Parser:
    parser = command_parser(
        NAME,
        "Measure rungs of the ladder in turns: the same tokens, interleaved rounds, intervals, and the floor. All of "
        "them under A and C take one to three minutes on a laptop, and about five on a large GPU.",
    )
    parser.add_argument("--workloads", default="A,C", metavar="X,Y", help=f"some of {', '.join(KNOWN)}")
    parser.add_argument("--lessons", metavar="NNN,MMM", help="the engines after these lessons (default: all)")
    parser.add_argument("--from", metavar="NNN", help="in place of --lessons: the first of them")
    parser.add_argument("--to", metavar="NNN", help="in place of --lessons: the last of them")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, after one that warms up")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the throughput of all rungs there")
    add_json_flag(parser)
    add_articles_flags(parser, "as in the articles on a GPU, a quarter of each size on a CPU")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
