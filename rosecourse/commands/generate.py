"""rosecourse generate: complete a prompt, the text streamed as it comes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ..config import SamplingParams
from ..errors import LogitsError
from ..records.files import write_json
from .late import engines, session, workload
from .options import (
    Flags,
    command,
    count,
    engine_options,
    eos_option,
    json_option,
    model_options,
    samples_option,
    text_of,
)

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine

MOST_TOGETHER = 16  # samples in one decode step; further ones wait


@command
@click.option("--prompt", required=True, callback=text_of, help="The text to complete, or - to read it.")
@click.option("--max-new-tokens", type=count(), default=100, help="Most tokens to write.")
@click.option("--temperature", type=float, default=0.0, help="0 takes the most probable token (greedy).")
@click.option("--top-k", type=int, default=0, help="Sample from this many tokens; 0: from all.")
@click.option("--top-p", type=float, default=1.0, help="Sample from the fewest tokens that are this probable together.")
@eos_option
@samples_option
@json_option
@model_options
@engine_options
def generate(flags: Flags) -> None:
    """Complete a prompt.

    The text is streamed as it comes, and several samples come when all are there.
    """
    known = {name: vars(flags)[name] for name in ("max_new_tokens", "temperature", "top_k", "top_p", "seed")}
    params = SamplingParams(**known, stop_on_eos=not flags.no_stop_on_eos)
    model = engines.model_of(flags)
    engine = engines.engine_of(flags, model, max_batch_size=min(flags.samples, MOST_TOGETHER))
    if flags.samples == 1:
        written = stream_one(engine, flags.prompt, params)
    else:
        written = {"samples": write_samples(engine, flags.prompt, params, flags.samples)}
    write_json(flags.json, {**engines.head(flags), "prompt": flags.prompt, **written})


def stream_one(engine: InferenceEngine, prompt: str, params: SamplingParams) -> dict[str, Any]:
    """Print the prompt and each token as it comes; returns what the JSON document says of them."""
    stream = engine.stream(prompt, params)
    print(prompt, end="", flush=True)
    tokens, seconds, failed = [], [], None
    start = time.perf_counter()
    try:
        for token in stream:
            tokens.append(token)
            seconds.append(round(time.perf_counter() - start, 6))
            print(token.text, end="", flush=True)
    except LogitsError:
        failed = "error"
    print()
    ids, text = [token.token_id for token in tokens], "".join(token.text for token in tokens)
    reason = failed or (tokens[-1].finish_reason if tokens else None)
    workload.require_whole([params], [ids], [reason], engine.eos_token_id)
    return {"text": text, "token_ids": ids, "token_seconds": seconds, "finish_reason": reason}


def write_samples(engine: InferenceEngine, prompt: str, params: SamplingParams, n: int) -> list[dict[str, Any]]:
    """Print n samples when all are there, one after another; returns what the JSON document says of each."""
    pairs = list(zip(session.samples_of(params, n), engine.generate(prompt, params, n), strict=True))
    asked_of, ids, reasons = zip(*((one, made.token_ids, made.finish_reason) for one, made in pairs), strict=True)
    workload.require_whole(asked_of, ids, reasons, engine.eos_token_id)
    for number, (asked, sample) in enumerate(pairs):
        print(f"=== sample {number}, seed {asked.seed} ===\n{prompt}{sample.text}")
    names = ("text", "token_ids", "finish_reason")
    return [{"seed": asked.seed, **{name: getattr(one, name) for name in names}} for asked, one in pairs]
