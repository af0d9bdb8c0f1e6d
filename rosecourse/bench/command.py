"""What the two benchmark commands share: their flags, the engine and the workload that the flags describe, the runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tqdm import tqdm

from ..cli import (
    Parser,
    add_engine_flags,
    add_json_flag,
    add_model_flags,
    check_writable,
    config_of,
    model_of,
    parts_of,
    write_json,
)
from ..config import SamplingParams, is_count, require
from ..engine import InferenceEngine
from ..scheduler import ADMISSION_POLICIES
from .report import document
from .workload import Run, Workload

DEFAULT_PROMPT = "Hello"


def add_benchmark_flags(parser: Parser, *, num_requests: int, max_new_tokens: int) -> None:
    """The flags of the articles' command lines, and ours."""
    work = parser.add_argument_group("workload")
    work.add_argument("--prompt", default=DEFAULT_PROMPT, help="the text that every request completes")
    work.add_argument("--num-requests", type=int, default=num_requests)
    work.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help="completion tokens per request")
    work.add_argument("--no-stop-on-eos", action="store_true", help="go on after the end of text: equal lengths")
    work.add_argument("--pretok", action="store_true", help="tokenise before the clock starts")
    work.add_argument("--tokenize-workers", type=int, default=0, help="threads that tokenise; 0: the submitting one")
    work.add_argument("--max-batch-size", type=int, default=16, help="most requests decoded together")
    work.add_argument("--prefill-max-batch-size", type=int, help="most prompts computed together (default: the same)")
    work.add_argument("--prefill-admission-policy", choices=ADMISSION_POLICIES, default="fifo")
    work.add_argument(
        "--paged-attn", action="store_true", help="read K and V through block tables, without it gathered"
    )
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--warmup-runs", type=int, default=1, help="not counted; they also fill the prefix cache")
    measure.add_argument("--repeat-runs", type=int, default=3)
    add_json_flag(measure)
    add_model_flags(parser)
    add_engine_flags(parser)


def engine_and_workload(args: argparse.Namespace) -> tuple[InferenceEngine, Workload]:
    """The engine that the flags describe, no larger than the workload needs, and the workload."""
    leasts = {"num_requests": 1, "repeat_runs": 1, "prefill_max_batch_size": 1, "tokenize_workers": 0, "warmup_runs": 0}
    for flag, least in leasts.items():
        value = getattr(args, flag)
        require(value is None or is_count(value, least), f"{flag} is {value}: give {least} or more")
    interval = getattr(args, "submit_interval_ms", 0.0)
    require(0 <= interval < float("inf"), f"submit_interval_ms is {interval}: give 0 or more")
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=not args.no_stop_on_eos, seed=args.seed)
    parts = parts_of(args)
    model = model_of(args)
    prompt_ids = model.tokenizer.encode(args.prompt, verbose=False)
    longest = min(max(2, len(prompt_ids) + args.max_new_tokens), model.shape.context)
    engine = InferenceEngine(model, config_of(args, max_batch_size=args.max_batch_size, max_seq_len=longest), parts)
    engine.new_session(args.prompt, params)  # refuses what can never be served, before any work
    workload = Workload(
        prompts=(tuple(prompt_ids) if args.pretok else args.prompt,) * args.num_requests,
        params=params,
        prefill_max_batch_size=args.prefill_max_batch_size,
        admission=ADMISSION_POLICIES[args.prefill_admission_policy],
        submit_interval=interval / 1e3,
        tokenize_workers=args.tokenize_workers,
    )
    return engine, workload


def measure(
    args: argparse.Namespace,
    name: str,
    argv: Sequence[str],
    run: Callable[[InferenceEngine, Workload], Run],
) -> tuple[InferenceEngine, list[Run]]:
    """Warm up, run, and write the JSON document; returns the engine and the measured runs."""
    check_writable(args.json)
    engine, workload = engine_and_workload(args)
    runs = []
    for number in tqdm(range(args.warmup_runs + args.repeat_runs), desc="runs", file=sys.stderr, leave=False):
        result = run(engine, workload)
        if number >= args.warmup_runs:
            runs.append(result)
    write_json(args.json, document(name, argv, settings_of(args, engine), runs))
    return engine, runs


def settings_of(args: argparse.Namespace, engine: InferenceEngine) -> dict[str, Any]:
    """Every flag's value and what the engine made of the open ones."""
    flags = {name: value for name, value in vars(args).items() if name != "json"}
    config = engine.config
    resolved = {
        "num_blocks": config.num_blocks,
        "max_seq_len": config.max_seq_len,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "device": engine.model.device.type,
        "model": engine.model.name,
    }
    return flags | resolved
