"""What the two benchmark commands share: the workload that their flags describe, and the runs. This imports torch."""

from __future__ import annotations

import sys

from tqdm import tqdm

from ..config import SamplingParams
from ..engine.engine import InferenceEngine
from ..lessons import lesson
from ..measure.metrics import DEFINITIONS
from ..measure.samples import Samples
from ..measure.summary import Measured
from ..measure.workload import Runner, Workload
from ..records.json_file import write_json
from ..records.run_json import plain_run
from . import engines
from .options import Flags

UNITS = "seconds; submitted, admitted, tokens and read count from the start of their run"


def engine_and_workload(flags: Flags, samples: int, readers: str) -> tuple[InferenceEngine, Workload]:
    """The engine that the flags describe, no larger than the workload needs, and the workload."""
    params = SamplingParams(max_new_tokens=flags.max_new_tokens, stop_on_eos=not flags.no_stop_on_eos, seed=flags.seed)
    model = engines.model_of(flags)
    prompt_ids = engines.ids_of(flags.prompt, model)
    longest = min(max(2, len(prompt_ids) + flags.max_new_tokens), model.shape.context)
    largest = min(flags.max_batch_size, flags.num_requests * samples)
    engine = engines.engine_of(flags, model, max_batch_size=largest, max_seq_len=longest)
    engine.new_session(flags.prompt, params)  # refuses what can never be served, before any work
    workload = Workload.of(
        [tuple(prompt_ids) if flags.pretok else flags.prompt] * flags.num_requests,
        params,
        flags.submit_interval_ms / 1e3,
        samples,
        prefill_max_batch_size=flags.prefill_max_batch_size,
        tokenize_workers=flags.tokenize_workers,
        readers=readers,
    )
    return engine, workload


def measured(flags: Flags, runner: Runner, samples: int = 1, readers: str = "sequential") -> Measured:
    """Warm up, do the counted runs, and write the JSON document. samples: of each request; readers: of its streams."""
    engine, workload = engine_and_workload(flags, samples, readers)
    # No bar where nobody watches (disable=None), and none that moves while the clock runs.
    numbers = tqdm(range(flags.warmup_runs + flags.repeat_runs), "runs", file=sys.stderr, leave=False, disable=None)
    runs = [runner(engine, workload) for _ in numbers][flags.warmup_runs :]
    rung = lesson(flags.lesson)
    document = engines.head(flags) | {
        "units": UNITS,
        "definitions": DEFINITIONS,
        "runs": [plain_run(run) for run in runs],
    }
    document["settings"] |= {  # what the flags left open
        "lesson": rung.number,
        "num_blocks": engine.config.num_blocks,
        "max_seq_len": engine.config.max_seq_len,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "device": engine.model.device.type,
        "model": engine.model.name,
    }
    write_json(flags.json, document)
    return Measured(engine, rung, flags.dense, flags.warmup_runs, Samples(rung.number, runs))
