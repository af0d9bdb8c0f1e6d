"""python -m rosecourse.benchmark_transformers: the engine against `transformers` generate, in one process."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from .arguments import Parser, command
from .bench.compare import interleave, ratio
from .bench.report import device_name, ms, p50_mean, provenance
from .cli import (
    add_engine_flags,
    add_json_flag,
    add_model_flags,
    check_counts,
    command_line,
    engine_of,
    flags_of,
    lesson_of,
    model_of,
    run,
)
from .config import SamplingParams
from .engine import InferenceEngine
from .errors import RosecourseError
from .files import check_writable, write_json
from .lessons import Lesson
from .models.gpt2 import GPT2

NAME = "benchmark_transformers"


def transformers_run(model: GPT2LMHeadModel, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy completions by `transformers` generate with its dynamic cache."""
    ids = torch.tensor(prompts, device=model.device)
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
    return out[:, ids.shape[1] :].tolist()


def make_parser() -> Parser:
    parser = command(NAME, "Measure the engine against transformers generate: same tokens, interleaved, an interval.")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=8, help="length of the random prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs that count")
    add_json_flag(parser)
    add_model_flags(parser)
    add_engine_flags(parser)
    return parser


def as_transformers(model: GPT2) -> GPT2LMHeadModel:
    """The same weights in the model of `transformers`, which makes all the tokens that it is asked for."""
    shape = model.shape
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        layer_norm_epsilon=shape.layer_norm_eps,
        bos_token_id=None,
        eos_token_id=None,
    )
    theirs = GPT2LMHeadModel(config).to(model.device, model.dtype).eval()
    theirs.transformer.load_state_dict(model.weights)
    return theirs


@dataclass
class PairedRuns:
    """Seconds of each counted run of both, and whether they made the same tokens."""

    transformers: list[float]
    engine: list[float]
    same_tokens: bool


def run_pairs(engine: InferenceEngine, prompts: list[list[int]], params: SamplingParams, pairs: int) -> PairedRuns:
    """Both complete the prompts, in interleaved runs."""
    theirs = as_transformers(engine.model)
    tokens: dict[str, list[list[int]]] = {}

    def seconds_of(name: str, work: Callable[[], list[list[int]]]) -> float:
        start = time.perf_counter()
        tokens[name] = work()
        return time.perf_counter() - start

    before, after = interleave(
        lambda: seconds_of("transformers", lambda: transformers_run(theirs, prompts, params.max_new_tokens)),
        lambda: seconds_of("engine", lambda: [result.token_ids for result in engine.generate(prompts, params)]),
        pairs,
        progress=sys.stderr.isatty(),
    )
    return PairedRuns(before, after, tokens["transformers"] == tokens["engine"])


def measure(args: argparse.Namespace) -> None:
    check_writable(args.json)
    check_counts(args, {"pairs": 2, "prompt_tokens": 1})
    rung = lesson_of(args)
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=False)
    model = model_of(args)
    engine = engine_of(args, model, rung.after, max_batch_size=args.batch_size)
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.batch_size, args.prompt_tokens)
    engine.new_session([0] * args.prompt_tokens, params)  # refuses what can never be served, before any work
    prompts = torch.randint(1, model.shape.vocab_size, shape, generator=generator).tolist()
    found = run_pairs(engine, prompts, params, args.pairs)
    if model.dtype == torch.float32 and not found.same_tokens:
        raise RosecourseError("the tokens differ: a comparison of times would mean nothing; please report this")
    print_summary(args, engine, rung, found)
    write_json(
        args.json,
        {
            "command": command_line(make_parser(), args),
            **provenance(),
            "settings": flags_of(args),
            "same_tokens": found.same_tokens,
            "transformers_seconds": found.transformers,
            "engine_seconds": found.engine,
        },
    )


def print_summary(args: argparse.Namespace, engine: InferenceEngine, rung: Lesson, found: PairedRuns) -> None:
    model, count = engine.model, args.batch_size * args.max_new_tokens
    same = "yes" if found.same_tokens else f"no ({model.dtype} rounds differently)"
    faster = ratio(found.transformers, found.engine)
    print("=== transformers generate (dynamic cache) and the engine ===")
    print(f"Same tokens: {same}, {count} of them, greedy")
    for name, seconds in (("transformers", found.transformers), (f"rosecourse {rung.number}", found.engine)):
        step = p50_mean(ms([s / args.max_new_tokens for s in seconds]), ".3f")
        print(f"{name} p50/mean: {step} ms/step, {p50_mean([count / s for s in seconds])} tokens/s")
    print(f"Ratio: {faster} over {args.pairs} interleaved pairs: {faster.verdict}")
    print(f"On: {model.name}, {device_name(model.device)}, batch {args.batch_size}, {args.max_new_tokens} new tokens")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(make_parser(), measure, argv)


if __name__ == "__main__":
    sys.exit(main())
