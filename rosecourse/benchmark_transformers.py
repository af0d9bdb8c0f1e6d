"""python -m rosecourse.benchmark_transformers: the engine against `transformers` generate, in one process."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import torch
from transformers import GPT2LMHeadModel

from .bench.compare import interleave, ratio
from .bench.report import device_name, ms, p50_mean, provenance
from .cli import add_engine_flags, add_json_flag, check_writable, command, config_of, lesson_of, run, write_json
from .config import SamplingParams, is_count, require
from .engine import InferenceEngine
from .errors import RosecourseError
from .models.load import DTYPES, SHIPPED_MODEL, load_model

NAME = "benchmark_transformers"


def transformers_run(model: GPT2LMHeadModel, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """Greedy completions by `transformers` generate with its dynamic cache."""
    ids = torch.tensor(prompts, device=model.device)
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
    return out[:, ids.shape[1] :].tolist()


def measure(args: argparse.Namespace) -> None:
    check_writable(args.json)
    require(is_count(args.pairs, 2), f"pairs is {args.pairs}: give 2 or more")
    rung = lesson_of(args)
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=False)
    model = load_model(args.hf_model_id, args.dtype, args.device)
    engine = InferenceEngine(model, config_of(args, max_batch_size=args.batch_size), rung.after)
    theirs = GPT2LMHeadModel.from_pretrained(args.hf_model_id or SHIPPED_MODEL, dtype=model.dtype).to(model.device)
    theirs.generation_config.eos_token_id = None  # both make all the tokens
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.batch_size, args.prompt_tokens)
    prompts = torch.randint(1, model.shape.vocab_size, shape, generator=generator).tolist()
    engine.new_session(prompts[0], params)  # refuses what can never be served, before any work

    def seconds_of(work: str) -> float:
        start = time.perf_counter()
        if work == "transformers":
            tokens["transformers"] = transformers_run(theirs, prompts, args.max_new_tokens)
        else:
            tokens["engine"] = [result.token_ids for result in engine.generate(prompts, params)]
        return time.perf_counter() - start

    tokens: dict[str, list[list[int]]] = {}
    before, after = interleave(
        lambda: seconds_of("transformers"), lambda: seconds_of("engine"), args.pairs, progress=sys.stderr.isatty()
    )
    same = tokens["transformers"] == tokens["engine"]
    if model.dtype == torch.float32 and not same:
        raise RosecourseError("the tokens differ: a comparison of times would mean nothing; please report this")
    faster = ratio(before, after)
    count = args.batch_size * args.max_new_tokens
    print("=== transformers generate (dynamic cache) and the engine ===")
    print(f"Same tokens: {'yes' if same else f'no ({args.dtype} rounds differently)'}, {count} of them, greedy")
    for name, seconds in (("transformers", before), (f"rosecourse {rung.number}", after)):
        step = p50_mean(ms([s / args.max_new_tokens for s in seconds]), ".3f")
        print(f"{name} p50/mean: {step} ms/step, {p50_mean([count / s for s in seconds])} tokens/s")
    print(f"Ratio: {faster} over {args.pairs} interleaved pairs: {faster.verdict}")
    print(f"On: {model.name}, {device_name(model.device)}, batch {args.batch_size}, {args.max_new_tokens} new tokens")
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    record = {"settings": settings, "same_tokens": same, "transformers_seconds": before, "engine_seconds": after}
    write_json(args.json, {**provenance(), **record})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = command(
        NAME, "Measure the engine against transformers generate: same tokens, interleaved, with an interval."
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=8, help="length of the random prompts")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs of runs that count")
    parser.add_argument(
        "--hf-model-id", metavar="ID", help="a Hugging Face folder or hub id (default: the shipped one)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32 on a CPU, float16 on CUDA")
    parser.add_argument("--seed", type=int, default=0, help="of the random prompts")
    add_json_flag(parser)
    add_engine_flags(parser)
    return run(parser, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
