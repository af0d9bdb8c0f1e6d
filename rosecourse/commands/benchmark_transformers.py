"""rosecourse benchmark_transformers: the engine against `transformers` generate, in one process."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import click

import rosecourse

from ..config import SamplingParams
from ..errors import RosecourseError
from ..records.files import write_json
from .late import engines, provenance, rivals, stats, summary, torch
from .options import Flags, command, count, engine_options, json_option, model_options

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine


@command
@click.option("--batch-size", type=count(), default=16, help="Requests that are decoded together.")
@click.option("--prompt-tokens", type=count(), default=8, help="Length of the random prompts.")
@click.option("--max-new-tokens", type=count(), default=128, help="Completion tokens of a request.")
@click.option("--pairs", type=count(2), default=9, help="Interleaved pairs of runs that count.")
@click.option("--static-cache", is_flag=True, help="For transformers; on a GPU it then compiles its forward.")
@json_option
@model_options
@engine_options
def benchmark_transformers(flags: Flags) -> None:
    """Measure the engine against transformers generate.

    Both write the same tokens, in interleaved runs; the ratio has an interval.
    """
    params = SamplingParams(max_new_tokens=flags.max_new_tokens, stop_on_eos=False)
    model = engines.model_of(flags)
    engine = engines.engine_of(flags, model, max_batch_size=flags.batch_size)
    engine.new_session([0] * flags.prompt_tokens, params)  # refuses what can never be served, before any work
    generator, shape = torch.Generator().manual_seed(flags.seed), (flags.batch_size, flags.prompt_tokens)
    prompts = torch.randint(1, model.shape.vocab_size, shape, generator=generator).tolist()
    theirs, ours, same_tokens = rivals.time_pairs(engine, prompts, params, flags.pairs, flags.static_cache)
    if model.dtype == torch.float32 and not same_tokens:
        raise RosecourseError("the tokens differ: a comparison of times would mean nothing; please report this")
    print_summary(flags, engine, theirs, ours, same_tokens)
    told = {"same_tokens": same_tokens, "transformers_seconds": theirs, "engine_seconds": ours}
    write_json(flags.json, engines.head(flags) | told)


def print_summary(
    flags: Flags, engine: InferenceEngine, theirs: list[float], ours: list[float], same_tokens: bool
) -> None:
    """Medians of both, and the ratio with its interval."""
    model, rung, count = engine.model, rosecourse.lesson(flags.lesson), flags.batch_size * flags.max_new_tokens
    same = "yes" if same_tokens else f"no ({model.dtype} rounds differently)"
    print(f"=== transformers generate ({'static' if flags.static_cache else 'dynamic'} cache) and the engine ===")
    print(f"Same tokens: {same}, {count} of them, greedy")
    for name, seconds in (("transformers", theirs), (f"rosecourse {rung.number}", ours)):
        middle = median(seconds)
        print(f"{name} p50: {1e3 * middle / flags.max_new_tokens:.3f} ms/step, {count / middle:.2f} tokens/s")
    faster = stats.ratio(theirs, ours)
    print(f"Ratio: {faster} over {flags.pairs} interleaved pairs: {faster.verdict_over(flags.pairs)}")
    print(f"Lesson: {rung.number}, {rung.title}; {summary.attention_of(flags.dense)}")
    device = provenance.device_name(model.device)
    print(f"On: {model.name}, {device}, batch {flags.batch_size}, {flags.max_new_tokens} new tokens")
