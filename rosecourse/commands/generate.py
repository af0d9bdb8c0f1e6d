"""rosecourse generate: complete a prompt, the text streamed as it comes."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import add_engine_flags, add_json_flag, add_model_flags, add_samples_flag
from .parser import Parser, command_parser, run_command, work_of

NAME = "generate"


def make_parser() -> Parser:
    parser = command_parser(
        NAME, "Complete a prompt; the text is streamed as it comes, and several samples come when all are there."
    )
    parser.add_argument("--prompt", required=True, help="the text to complete, or - to read it from standard input")
    parser.add_argument("--max-new-tokens", type=int, default=100, help="most tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most probable token (greedy)")
    parser.add_argument("--top-k", type=int, default=0, help="sample from this many tokens; 0: from all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the fewest tokens with this probability together"
    )
    parser.add_argument("--no-stop-on-eos", action="store_true", help="go on after the end of text")
    add_samples_flag(parser)
    add_json_flag(parser)
    add_model_flags(parser)
    add_engine_flags(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), work_of(NAME), argv)
