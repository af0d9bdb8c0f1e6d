"""rosecourse benchmark_transformers: the engine against `transformers` generate, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import rosecourse

from ..checks import require
from ..config import SamplingParams
from ..errors import RosecourseError
from ..records.json_file import write_json
from .late import engines, provenance, rivals, stats, summary, torch
from .options import Flags, command, count, engine_options, json_option, model_options

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine
    from ..measure.rivals import Generate, PairedRuns


@command
@click.option("--batch-size", type=count(), default=16, help="Requests that are decoded together.")
@click.option("--prompt-tokens", type=count(), default=8, help="Length of the random prompts.")
@click.option("--max-new-tokens", type=count(), default=128, help="Completion tokens of a request.")
@click.option("--pairs", type=count(2), default=9, help="Interleaved pairs of runs that count.")
@click.option("--static-cache", is_flag=True, help="Let transformers use a cache of a fixed size.")
@click.option("--compile", is_flag=True, help="And compile its forward, up to some minutes (needs --static-cache).")
@json_option
@model_options
@engine_options
def benchmark_transformers(flags: Flags) -> None:
    """Measure the engine against transformers generate.

    Both write the same tokens, in interleaved runs; the ratio has an interval.
    """
    require(flags.static_cache or not flags.compile, "--compile needs a cache of a fixed size: add --static-cache")
    params = SamplingParams(max_new_tokens=flags.max_new_tokens, stop_on_eos=False)
    model = engines.model_of(flags)
    engine = engines.engine_of(flags, model, max_batch_size=flags.batch_size)
    engine.new_session([0] * flags.prompt_tokens, params)  # refuses what can never be served, before any work
    generator = torch.Generator().manual_seed(flags.seed)
    shape = (flags.batch_size, flags.prompt_tokens)
    prompts = torch.randint(1, model.shape.vocab_size, shape, generator=generator).tolist()
    generate = rivals.Generate(flags.static_cache, flags.compile)
    if generate.compiled:
        print("Compiling the forward of transformers: up to some minutes ...", flush=True)
    timed = rivals.time_pairs(engine, prompts, params, flags.pairs, generate)
    if model.dtype == torch.float32 and not timed.same_tokens:
        raise RosecourseError("the tokens differ: a comparison of times would mean nothing; please report this")
    print_summary(flags, engine, generate, timed)
    told = {
        "same_tokens": timed.same_tokens,
        "transformers_compiling_seconds": timed.compiling,
        "transformers_seconds": timed.transformers,
        "engine_seconds": timed.engine,
    }
    write_json(flags.json, engines.head(flags) | told)


def print_summary(flags: Flags, engine: InferenceEngine, generate: Generate, timed: PairedRuns) -> None:
    """Medians and means of both, and the ratio with its interval."""
    model, rung, count = engine.model, rosecourse.lesson(flags.lesson), flags.batch_size * flags.max_new_tokens
    same = "yes" if timed.same_tokens else f"no ({model.dtype} rounds differently)"
    faster = stats.ratio(timed.transformers, timed.engine)
    print(f"=== transformers generate ({generate}) and the engine ===")
    if timed.compiling is not None:
        print(f"Compiling, and a first run: {timed.compiling:.1f} s, which no figure below holds")
    print(f"Same tokens: {same}, {count} of them, greedy")
    for name, seconds in (("transformers", timed.transformers), (f"rosecourse {rung.number}", timed.engine)):
        step = summary.p50_mean([1e3 * s / flags.max_new_tokens for s in seconds], ".3f")
        print(f"{name} p50/mean: {step} ms/step, {summary.p50_mean([count / s for s in seconds])} tokens/s")
    print(f"Ratio: {faster} over {flags.pairs} interleaved pairs: {faster.verdict_over(flags.pairs)}")
    print(f"Lesson: {rung.number}, {rung.title}; {summary.attention_of(flags.dense)}")
    device = provenance.device_name(model.device)
    print(f"On: {model.name}, {device}, batch {flags.batch_size}, {flags.max_new_tokens} new tokens")
