"""What the two benchmark commands share: the engine and the workload that their flags describe, and the runs."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tqdm import tqdm

from ...checks import require
from ...config import SamplingParams
from ...engine.engine import InferenceEngine
from ...measure.metrics import DEFINITIONS
from ...measure.provenance import provenance
from ...measure.samples import Samples
from ...measure.workload import Runner, Workload
from ...records.json_file import require_writable_json, write_json
from ...records.run_json import plain_run
from ..flags import command_line, flags_of, require_counts, text_of
from ..parser import Parser
from .building import engine_of, ids_of, lesson_of, model_of, parts_of
from .summary import Measured

LONGEST_INTERVAL = 3_600_000  # milliseconds: an hour
LEASTS = {"num_requests": 1, "repeat_runs": 1, "prefill_max_batch_size": 1, "tokenize_workers": 0, "warmup_runs": 0}
UNITS = "seconds; submitted, admitted, tokens and read count from the start of their run"


def engine_and_workload(args: argparse.Namespace, samples: int, readers: str) -> tuple[InferenceEngine, Workload]:
    """The engine that the flags describe, no larger than the workload needs, and the workload.

    samples: per request; readers: of its streams.
    """
    require_counts(args, LEASTS)
    interval = args.submit_interval_ms
    require(0 <= interval <= LONGEST_INTERVAL, f"submit_interval_ms is {interval}: give 0 or more, at most an hour")
    params = SamplingParams(max_new_tokens=args.max_new_tokens, stop_on_eos=not args.no_stop_on_eos, seed=args.seed)
    prompt = text_of(args.prompt)
    parts = parts_of(args)
    model = model_of(args)
    prompt_ids = ids_of(prompt, model)
    longest = min(max(2, len(prompt_ids) + args.max_new_tokens), model.shape.context)
    largest = min(args.max_batch_size, args.num_requests * samples)
    engine = engine_of(args, model, parts, max_batch_size=largest, max_seq_len=longest)
    engine.new_session(prompt, params)  # refuses what can never be served, before any work
    workload = Workload.of(
        [tuple(prompt_ids) if args.pretok else prompt] * args.num_requests,
        params,
        interval / 1e3,
        samples,
        prefill_max_batch_size=args.prefill_max_batch_size,
        tokenize_workers=args.tokenize_workers,
        readers=readers,
    )
    return engine, workload


def measure_and_write(
    parser: Parser, args: argparse.Namespace, runner: Runner, samples: int = 1, readers: str = "sequential"
) -> Measured:
    """Warm up, do the counted runs, and write the JSON document. samples: of each request; readers: of its streams."""
    require_writable_json(args.json)
    engine, workload = engine_and_workload(args, samples, readers)
    runs = []
    # No bar where nobody watches (disable=None), and none that moves while the clock runs.
    for number in tqdm(range(args.warmup_runs + args.repeat_runs), "runs", file=sys.stderr, leave=False, disable=None):
        run = runner(engine, workload)
        if number >= args.warmup_runs:
            runs.append(run)
    rung = lesson_of(args)
    measured = Measured(engine, rung, args.dense, args.warmup_runs, Samples(rung.number, runs))
    write_json(args.json, benchmark_document(command_line(parser, args), settings_of(args, measured), measured.samples))
    return measured


def settings_of(args: argparse.Namespace, measured: Measured) -> dict[str, Any]:
    """Every flag's value, and the values that those left open came to."""
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


def benchmark_document(command: str, settings: dict[str, Any], samples: Samples) -> dict[str, Any]:
    """The JSON document of a benchmark, with every raw sample."""
    return {
        "command": command,
        **provenance(),
        "settings": settings,
        "units": UNITS,
        "definitions": DEFINITIONS,
        "runs": [plain_run(run) for run in samples.runs],
    }
