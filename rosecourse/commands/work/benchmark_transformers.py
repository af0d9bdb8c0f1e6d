"""The engine against `transformers` generate, in one process."""

from __future__ import annotations

import argparse

import torch

from ...checks import require
from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...errors import RosecourseError
from ...lessons import Lesson
from ...measure.provenance import device_name, provenance
from ...measure.rivals import Generate, PairedRuns, time_pairs
from ...measure.stats import ratio
from ...records.json_file import require_writable_json, write_json
from ..benchmark_transformers import make_parser
from ..flags import command_line, flags_of, require_counts
from .building import engine_of, lesson_of, model_of, parts_of
from .summary import attention_of, ms, p50_mean


def run(args: argparse.Namespace) -> None:
    """Time both, print the summary and write the JSON document."""
    require_writable_json(args.json)
    require_counts(args, {"pairs": 2, "prompt_tokens": 1})
    require(args.static_cache or not args.compile, "--compile needs a cache of a fixed size: add --static-cache")
    generate = Generate(args.static_cache, args.compile)
    parts = parts_of(args)
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=False)
    model = model_of(args)
    engine = engine_of(args, model, parts, max_batch_size=args.batch_size)
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.batch_size, args.prompt_tokens)
    engine.new_session([0] * args.prompt_tokens, params)  # refuses what can never be served, before any work
    prompts = torch.randint(1, model.shape.vocab_size, shape, generator=generator).tolist()
    if generate.compiled:
        print("Compiling the forward of transformers: up to some minutes ...", flush=True)
    timed = time_pairs(engine, prompts, params, args.pairs, generate)
    if model.dtype == torch.float32 and not timed.same_tokens:
        raise RosecourseError("the tokens differ: a comparison of times would mean nothing; please report this")
    print_summary(args, engine, lesson_of(args), generate, timed)
    write_json(
        args.json,
        {
            "command": command_line(make_parser(), args),
            **provenance(),
            "settings": flags_of(args),
            "same_tokens": timed.same_tokens,
            "transformers_compiling_seconds": timed.compiling,
            "transformers_seconds": timed.transformers,
            "engine_seconds": timed.engine,
        },
    )


def print_summary(
    args: argparse.Namespace, engine: InferenceEngine, rung: Lesson, generate: Generate, timed: PairedRuns
) -> None:
    """Medians and means of both, and the ratio with its interval."""
    model, count = engine.model, args.batch_size * args.max_new_tokens
    same = "yes" if timed.same_tokens else f"no ({model.dtype} rounds differently)"
    faster = ratio(timed.transformers, timed.engine)
    print(f"=== transformers generate ({generate}) and the engine ===")
    if timed.compiling is not None:
        print(f"Compiling, and a first run: {timed.compiling:.1f} s, which no figure below holds")
    print(f"Same tokens: {same}, {count} of them, greedy")
    for name, seconds in (("transformers", timed.transformers), (f"rosecourse {rung.number}", timed.engine)):
        step = p50_mean(ms([s / args.max_new_tokens for s in seconds]), ".3f")
        print(f"{name} p50/mean: {step} ms/step, {p50_mean([count / s for s in seconds])} tokens/s")
    print(f"Ratio: {faster} over {args.pairs} interleaved pairs: {faster.verdict_over(args.pairs)}")
    print(f"Lesson: {rung.number}, {rung.title}; {attention_of(args.dense)}")
    print(f"On: {model.name}, {device_name(model.device)}, batch {args.batch_size}, {args.max_new_tokens} new tokens")
