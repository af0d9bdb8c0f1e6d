"""rosecourse benchmark_scheduler and benchmark_streaming: the articles' two benchmarks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

import rosecourse

from ..checks import require
from ..config import SamplingParams
from ..records.files import plain_run, write_json
from .late import engines, metrics, samples, summary, tqdm, workload
from .options import Flags, benchmark_options, command, samples_option

if TYPE_CHECKING:
    from ..engine.engine import InferenceEngine
    from ..measure.samples import Samples
    from ..measure.workload import Runner, Workload

MODES = click.Choice(["online", "offline"])
READERS = ("sequential", "threads", "one", "asyncio")  # as in `measure.readers`
WHO = "Who reads the streams: one after the other, a thread for each, one thread for all, or a coroutine for each."
UNITS = "seconds; submitted, admitted, tokens and read count from the start of their run"


@command
@click.option("--mode", type=MODES, default="online", help="Continuous or static batches.")
@samples_option
@benchmark_options
def benchmark_scheduler(flags: Flags) -> None:
    """Measure a scheduler.

    All requests are there from the start.
    """
    runner = workload.run_scheduler if flags.mode == "online" else workload.run_offline
    engine, found = measured(flags, runner, flags.samples)
    asked = summary.SCHEDULER, ("p50", "mean")
    summary.print_summary(flags.mode, engine, found, *asked, flags.warmup_runs, flags.dense)


@command
@click.option("--readers", type=click.Choice(READERS), default="sequential", help=WHO)
@benchmark_options
def benchmark_streaming(flags: Flags) -> None:
    """Measure what a reader of streamed tokens sees.

    Requests arrive on a schedule, and their tokens are read as they come.
    """
    engine, found = measured(flags, workload.run_streaming, readers=flags.readers)
    title, asked = f"streaming, readers: {flags.readers}", (summary.STREAMING, ("p50", "p95", "p99"))
    summary.print_summary(title, engine, found, *asked, flags.warmup_runs, flags.dense)


def engine_and_workload(flags: Flags, count: int, readers: str) -> tuple[InferenceEngine, Workload]:
    """The engine that the flags describe, no larger than the workload needs, and the workload."""
    require(flags.submit_interval_ms >= 0, "--submit-interval-ms is nan: give a number")
    params = SamplingParams(max_new_tokens=flags.max_new_tokens, stop_on_eos=not flags.no_stop_on_eos, seed=flags.seed)
    model = engines.model_of(flags)
    prompt_ids = engines.ids_of(flags.prompt, model)
    longest = min(max(2, len(prompt_ids) + flags.max_new_tokens), model.shape.context)
    largest = min(flags.max_batch_size, flags.num_requests * count)
    engine = engines.engine_of(flags, model, max_batch_size=largest, max_seq_len=longest)
    engine.new_session(flags.prompt, params)  # refuses what can never be served, before any work
    prompts = [tuple(prompt_ids) if flags.pretok else flags.prompt] * flags.num_requests
    who: dict[str, Any] = {"readers": readers, "tokenize_workers": flags.tokenize_workers}
    who["prefill_max_batch_size"] = flags.prefill_max_batch_size
    return engine, workload.Workload.of(prompts, params, flags.submit_interval_ms / 1e3, count, **who)


def measured(
    flags: Flags, runner: Runner, count: int = 1, readers: str = "sequential"
) -> tuple[InferenceEngine, Samples]:
    """Warm up, do the counted runs, and write the JSON document. count: samples of each request."""
    engine, work = engine_and_workload(flags, count, readers)
    # No bar where nobody watches (disable=None), and none that moves while the clock runs.
    bar = tqdm.trange(flags.warmup_runs + flags.repeat_runs, desc="runs", file=sys.stderr, leave=False, disable=None)
    runs = [runner(engine, work) for _ in bar][flags.warmup_runs :]
    rung, model = rosecourse.lesson(flags.lesson), engine.model
    document = engines.head(flags) | {"units": UNITS, "definitions": metrics.DEFINITIONS}
    document["runs"] = [plain_run(run) for run in runs]
    document["settings"] |= {  # what the flags left open
        **{name: getattr(engine.config, name) for name in ("num_blocks", "max_seq_len")},
        "lesson": rung.number,
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": model.device.type,
        "model": model.name,
    }
    write_json(flags.json, document)
    return engine, samples.Samples(rung.number, runs)
