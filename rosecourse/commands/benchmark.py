"""What the two benchmark commands share: their flags, the engine and the workload that the flags describe, the runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from ..checks import require
from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..engine.scheduler import ADMISSION_POLICIES
from ..measure.workload import Run, Workload
from ..records.document import document
from ..records.files import check_writable, write_json
from .flags import (
    add_engine_flags,
    add_json_flag,
    add_model_flags,
    check_counts,
    command_line,
    engine_of,
    flags_of,
    lesson_of,
    model_of,
    parts_of,
    text_of,
)
from .parser import Parser
from .summary import Measured

DEFAULT_PROMPT = "Hello"
LONGEST_INTERVAL = 3_600_000  # milliseconds: an hour


def add_benchmark_flags(parser: Parser, *, num_requests: int, max_new_tokens: int) -> None:
    """The flags of the articles' command lines, and ours."""
    work = parser.add_argument_group("workload")
    work.add_argument("--prompt", default=DEFAULT_PROMPT, help="the text that every request completes, or - to read it")
    work.add_argument("--num-requests", type=int, default=num_requests, help="in each run")
    work.add_argument("--max-new-tokens", type=int, default=max_new_tokens, help="completion tokens per request")
    work.add_argument("--no-stop-on-eos", action="store_true", help="go on after the end of text: equal lengths")
    work.add_argument(
        "--submit-interval-ms", type=float, default=0.0, help="between scheduled arrivals; 0: all at once"
    )
    work.add_argument("--pretok", action="store_true", help="tokenise before the clock starts")
    work.add_argument("--tokenize-workers", type=int, default=0, help="threads that tokenise; 0: the submitting one")
    work.add_argument("--max-batch-size", type=int, default=16, help="most requests decoded together")
    work.add_argument("--prefill-max-batch-size", type=int, help="most prompts computed together (default: the same)")
    work.add_argument(
        "--prefill-admission-policy", choices=ADMISSION_POLICIES, default="fifo", help="who of the waiting is next"
    )
    work.add_argument(
        "--paged-attn", action="store_true", help="read K and V through block tables, without it gathered"
    )
    measure = parser.add_argument_group("measuring")
    measure.add_argument("--warmup-runs", type=int, default=1, help="not counted; they also fill the prefix cache")
    measure.add_argument("--repeat-runs", type=int, default=3, help="counted; each has a scheduler of its own")
    add_json_flag(measure)
    add_model_flags(parser)
    add_engine_flags(parser)


def engine_and_workload(args: argparse.Namespace) -> tuple[InferenceEngine, Workload]:
    """The engine that the flags describe, no larger than the workload needs, and the workload."""
    leasts = {"num_requests": 1, "repeat_runs": 1, "prefill_max_batch_size": 1, "tokenize_workers": 0, "warmup_runs": 0}
    check_counts(args, leasts)
    interval = args.submit_interval_ms
    require(0 <= interval <= LONGEST_INTERVAL, f"submit_interval_ms is {interval}: give 0 or more, at most an hour")
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=not args.no_stop_on_eos, seed=args.seed)
    prompt = text_of(args.prompt)
    parts = parts_of(args)
    model = model_of(args)
    prompt_ids = model.tokenizer.encode(prompt, verbose=False)
    longest = min(max(2, len(prompt_ids) + args.max_new_tokens), model.shape.context)
    largest = min(args.max_batch_size, args.num_requests)
    engine = engine_of(args, model, parts, max_batch_size=largest, max_seq_len=longest)
    engine.new_session(prompt, params)  # refuses what can never be served, before any work
    workload = Workload(
        prompts=(tuple(prompt_ids) if args.pretok else prompt,) * args.num_requests,
        params=params,
        prefill_max_batch_size=args.prefill_max_batch_size,
        admission=ADMISSION_POLICIES[args.prefill_admission_policy],
        submit_interval=interval / 1e3,
        tokenize_workers=args.tokenize_workers,
    )
    return engine, workload


def measure(parser: Parser, args: argparse.Namespace, run: Callable[[InferenceEngine, Workload], Run]) -> Measured:
    """Warm up, run, and write the JSON document."""
    check_writable(args.json)
    engine, workload = engine_and_workload(args)
    runs = []
    # No bar where nobody watches (disable=None), and none that moves while the clock runs.
    for number in tqdm(range(args.warmup_runs + args.repeat_runs), "runs", file=sys.stderr, leave=False, disable=None):
        result = run(engine, workload)
        if number >= args.warmup_runs:
            runs.append(result)
    measured = Measured(engine, lesson_of(args), args.paged_attn, args.warmup_runs, runs)
    write_json(args.json, document(command_line(parser, args), settings_of(args, measured), runs))
    return measured


def settings_of(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    """Every flag's value, and what came of the open ones."""
    engine = measured.engine
    resolved = {
        "lesson": measured.lesson.number,
        "num_blocks": engine.config.num_blocks,
        "max_seq_len": engine.config.max_seq_len,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "device": engine.model.device.type,
        "model": engine.model.name,
    }
    return flags_of(args) | resolved
