"""Measure servers, and the engine alone, under the same requests: the rows of data/serving.csv.

    PYTHONPATH=. python tools/record/serving.py --name vLLM --base-url http://127.0.0.1:8000/v1 --out data/serving.csv
    PYTHONPATH=. python tools/record/serving.py --name "the engine alone" --model FOLDER --out data/serving.csv

Requests come for about four seconds at each rate, 64 of them or more; one run at the first rate warms up.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click
import pandas as pd
import torch

import rosecourse as rc
from rosecourse.measure.provenance import device_name
from rosecourse.measure.serving import Load, row_of
from rosecourse.measure.workload import Request, Workload, run_scheduler
from rosecourse.request.session import SessionTimes

PROMPT, NEW, BATCH = 128, 64, 64
COLUMNS = ["server", "model", "requests/s", "requests", "prompt", "new", "tokens/s"]
COLUMNS += ["TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "gpu", "torch", "date"]


def of_engine(engine: rc.InferenceEngine, load: Load, rate: float) -> list[SessionTimes]:
    """The same requests in this process, without a server."""
    params = rc.SamplingParams(max_new_tokens=load.new_tokens, stop_on_eos=False)
    arrivals, prompts = load.drawn(rate)
    requests = (Request(tuple(ids), params, moment) for moment, ids in zip(arrivals, prompts, strict=False))
    return run_scheduler(engine, Workload(tuple(requests))).times


@click.command(help=__doc__)
@click.option("--name", required=True, help="What the rows call the server.")
@click.option("--base-url", default="", help="Of a server, with its /v1.")
@click.option("--model", default="", help="The folder of the engine's model.")
@click.option("--rates", default="8,32,64,128,200", help="Requests a second.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="A CSV that grows.")
def main(name: str, base_url: str, model: str, rates: str, out: Path) -> None:
    if model:
        loaded = rc.load_model(model)
        config = rc.EngineConfig(max_batch_size=BATCH, max_seq_len=min(1024, loaded.shape.context), prefix_cache=False)
        engine = rc.InferenceEngine(loaded, config)
    numbers = [float(text) for text in rates.split(",")]
    rows = []
    for rate in (numbers[0], *numbers):
        load = Load(base_url, max(64, int(4 * rate)), PROMPT, NEW)
        found = (model, of_engine(engine, load, rate)) if model else load.run(rate)
        rows.append(row_of(load, rate, *found))
    gpu = device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    table = pd.DataFrame(rows[1:]).round(2).assign(server=name, gpu=gpu, torch=torch.__version__)
    table["model"], table["date"] = Path(rows[0]["model"]).name, datetime.now(UTC).date().isoformat()
    table.to_csv(out, mode="a", header=not out.exists(), index=False, columns=COLUMNS)
    print(table[COLUMNS[:11]].to_string(index=False))


if __name__ == "__main__":
    main()
