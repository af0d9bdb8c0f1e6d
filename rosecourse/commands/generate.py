"""rosecourse generate: complete a prompt, the text streamed as it comes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ..config import SamplingParams
from ..errors import LogitsError
from ..measure.provenance import provenance
from ..measure.whole_runs import Answer, require_whole
from ..records.json_file import require_writable_json, write_json
from .building import engine_of, model_of, parts_of
from .flags import add_engine_flags, add_json_flag, add_model_flags, command_line, flags_of, text_of
from .parser import Parser, command_parser, run_command


def make_parser() -> Parser:
    parser = command_parser("generate", "Complete a prompt; the text is streamed to standard output as it comes.")
    parser.add_argument("--prompt", required=True, help="the text to complete, or - to read it from standard input")
    parser.add_argument("--max-new-tokens", type=int, default=100, help="most tokens to write")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the most probable token (greedy)")
    parser.add_argument("--top-k", type=int, default=0, help="sample from this many tokens; 0: from all")
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="sample from the fewest tokens with this probability together"
    )
    parser.add_argument("--no-stop-on-eos", action="store_true", help="go on after the end of text")
    add_json_flag(parser)
    add_model_flags(parser)
    add_engine_flags(parser)
    return parser


def generate(args: argparse.Namespace) -> None:
    require_writable_json(args.json)
    params = SamplingParams(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        seed=args.seed,
        stop_on_eos=not args.no_stop_on_eos,
    )
    parts = parts_of(args)
    prompt = text_of(args.prompt)
    engine = engine_of(args, model_of(args), parts, max_batch_size=1)
    stream = engine.stream(prompt, params)
    print(prompt, end="", flush=True)
    tokens = []
    failed = False
    start = time.perf_counter()
    try:
        for token in stream:
            tokens.append((token, round(time.perf_counter() - start, 6)))
            print(token.text, end="", flush=True)
    except LogitsError:
        failed = True
    print()
    last = tokens[-1][0] if tokens else None
    reason = "error" if failed else last and last.finish_reason
    answer = Answer(params, len(tokens), len(tokens), last and last.token_id, reason)
    require_whole([answer], engine.eos_token_id)
    write_json(
        args.json,
        {
            "command": command_line(make_parser(), args),
            **provenance(),
            "settings": flags_of(args),
            "prompt": prompt,
            "text": "".join(token.text for token, _ in tokens),
            "token_ids": [token.token_id for token, _ in tokens],
            "token_seconds": [seconds for _, seconds in tokens],
            "finish_reason": tokens[-1][0].finish_reason,
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run_command(make_parser(), generate, argv)
