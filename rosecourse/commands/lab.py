"""rosecourse lab FILE.py:CLASS: check a part that is written in a file of its own, and race it."""

from __future__ import annotations

from collections.abc import Sequence

from .desk import ShowStatus
from .flags import add_threads_flag
from .parser import Parser, command_parser, run_command, work_of

NAME = "lab"
DEFAULT_LESSON = "060"  # the last lesson about a KV append whose part launches no kernels: it is about Python alone
# As in `lab.course`.
LESSONS_BY_PART = (
    "036 for block tables; 038, 059, 060 or 061 for a KV append; 062 for a KV append with one table for all layers; "
    "063 for a KV append by the block table; 064 for rows that stay; 065 for copies of blocks; "
    "066 for a runner of graphs; 067 for a pipeline of steps; 068 for a delivery; 069 for the operations of a layer; "
    "070 for the operations of a layer, with kernels; 071 for operations whose kernel may start early"
)


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Check a part of the decode step that you have written, and race it against the course's."
    )
    parser.add_argument("part", metavar="FILE.py:CLASS", help="a Python file, and the class in it that is the part")
    parser.add_argument(
        "--lesson",
        default=DEFAULT_LESSON,
        metavar="NNN",
        help=f"what it is to be, and is raced against: {LESSONS_BY_PART}",
    )
    parser.add_argument("--no-race", action="store_true", help="check it, and time nothing")
    parser.add_argument("--status", action=ShowStatus, help="show how far you have come in the lessons, and end")
    add_threads_flag(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 for a part that passes, 1 for one that does not, 2 for bad input."""
    return run_command(make_parser(), work_of(NAME), argv)
