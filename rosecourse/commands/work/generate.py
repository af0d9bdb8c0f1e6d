"""Complete a prompt: the text streamed as it comes, or several samples one after another."""

from __future__ import annotations

import argparse
import time
from typing import Any

from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...errors import LogitsError
from ...measure.provenance import provenance
from ...measure.whole_runs import Answer, require_whole
from ...records.json_file import require_writable_json, write_json
from ...request.session import samples_of
from ..flags import command_line, flags_of, require_counts, text_of
from ..generate import make_parser
from .building import engine_of, model_of, parts_of

MOST_TOGETHER = 16  # samples in one decode step; further ones wait


def run(args: argparse.Namespace) -> None:
    """Complete the prompt that the flags describe, and write the JSON document."""
    require_writable_json(args.json)
    require_counts(args, {"samples": 1})
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
    engine = engine_of(args, model_of(args), parts, max_batch_size=min(args.samples, MOST_TOGETHER))
    if args.samples == 1:
        written = stream_one(engine, prompt, params)
    else:
        written = {"samples": write_samples(engine, prompt, params, args.samples)}
    head = {"command": command_line(make_parser(), args), **provenance(), "settings": flags_of(args)}
    write_json(args.json, {**head, "prompt": prompt, **written})


def stream_one(engine: InferenceEngine, prompt: str, params: SamplingParams) -> dict[str, Any]:
    """Print the prompt and each token as it comes; returns what the JSON document says of them."""
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
    return {
        "text": "".join(token.text for token, _ in tokens),
        "token_ids": [token.token_id for token, _ in tokens],
        "token_seconds": [seconds for _, seconds in tokens],
        "finish_reason": tokens[-1][0].finish_reason,
    }


def write_samples(engine: InferenceEngine, prompt: str, params: SamplingParams, n: int) -> list[dict[str, Any]]:
    """Print n samples when all are there, one after another; returns what the JSON document says of each."""
    asked, samples = samples_of(params, n), engine.generate(prompt, params, n)
    require_whole([Answer.of_generation(*pair) for pair in zip(asked, samples, strict=True)], engine.eos_token_id)
    written = []
    for number, (of_it, sample) in enumerate(zip(asked, samples, strict=True)):
        print(f"=== sample {number}, seed {of_it.seed} ===\n{prompt}{sample.text}")
        told = {"seed": of_it.seed, "text": sample.text, "token_ids": sample.token_ids}
        written.append({**told, "finish_reason": sample.finish_reason})
    return written
