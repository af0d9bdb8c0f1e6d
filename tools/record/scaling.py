"""Measure what a second engine with a GPU of its own adds: to engines alone, and behind `rosecourse serve`.

    PYTHONPATH=. python tools/record/scaling.py --random-weights llama-1b --rounds 3 --out data/scaling.csv

It needs the extra `ray`, and no other Ray cluster on the machine. Zero replicas are the server without Ray. All
requests of a run come at once, and each replica has its share of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from multiprocessing import get_context
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import torch
from replicas import ray, server  # first, as it sets Ray's environment

import rosecourse as rc
from rosecourse.measure.provenance import cpu_name
from rosecourse.measure.serving import TOKEN_IDS, Load

AT_ONCE = 1e6  # requests/s


class Alone:
    """An engine in a Ray actor, with the settings of `rosecourse serve`."""

    def __init__(self, model: str, batch: int, device: str) -> None:
        config = rc.EngineConfig(max_batch_size=batch, max_seq_len=4096)
        self.engine = rc.InferenceEngine(rc.random_model(model, device=device), config)

    def run(self, requests: int, prompt_tokens: int, new_tokens: int, seed: int) -> int:
        """Tokens generated."""
        prompts = np.random.default_rng(seed).integers(*TOKEN_IDS, (requests, prompt_tokens)).tolist()
        params = rc.SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
        return sum(len(one.token_ids) for one in self.engine.generate(prompts, params))


def rate_of(actors: Sequence[Any], *load: int) -> float:
    """Tokens/s of engines that work beside each other."""
    start = time.perf_counter()
    tokens = sum(ray.get([actor.run.remote(*load, seed) for seed, actor in enumerate(actors)]))
    return tokens / (time.perf_counter() - start)


def ask(load: Load) -> list[tuple[float, list[float]]]:
    """The moments at which requests were sent, and at which their tokens came."""
    _, times = load.run(AT_ONCE)
    return [(one.submitted, one.tokens) for one in times]


def http_rate(pool: Pool, loads: Sequence[Load]) -> float:
    """Tokens/s from the first request to the last token."""
    found = [times for part in pool.map(ask, loads, chunksize=1) for times in part]
    seconds = max(tokens[-1] for _, tokens in found) - min(sent for sent, _ in found)
    return sum(len(tokens) for _, tokens in found) / seconds


def measure_alone(model: str, device: str, batch: int, rounds: int, load: tuple[int, int, int]) -> list[dict[str, Any]]:
    ray.init(log_to_driver=False)
    actor = ray.remote(num_gpus=1 if device == "cuda" else 0)(Alone)
    actors = [actor.remote(model, batch, device) for _ in range(2)]
    rows = []
    for number in range(-1, rounds):  # the first two runs warm up
        for count in (1, 2) if number % 2 else (2, 1):
            found = rate_of(actors[:count], *load)
            rows.append({"over": "engines alone", "engines": count, "clients": 0, "tokens/s": found})
            print(rows[-1], flush=True)
    ray.shutdown()
    return rows[2:]


@click.command(help=__doc__)
@click.option("--random-weights", "model", default="llama-1b")
@click.option("--device", default="cuda")
@click.option("--batch", default=64, help="Most requests that an engine decodes together.")
@click.option("--requests", default=512, help="For each engine.")
@click.option("--prompt-tokens", default=128)
@click.option("--new-tokens", default=200)
@click.option("--clients", default=8, help="Processes; with few, their own Python is what is measured.")
@click.option("--rounds", default=3, type=click.IntRange(1), help="Runs of the engines alone, and on each server.")
@click.option("--order", default="1,2,2,1,0", help="Replicas of the servers, one after another.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True)
def main(
    model: str,
    device: str,
    batch: int,
    requests: int,
    prompt_tokens: int,
    new_tokens: int,
    clients: int,
    rounds: int,
    order: str,
    out: Path,
) -> None:
    words = ["--random-weights", model, "--device", device, "--max-batch-size", str(batch), "--max-waiting", "4096"]
    told = {"model": model, "batch": batch, "requests": requests, "prompt": prompt_tokens, "new": new_tokens}
    told |= {"gpu": torch.cuda.get_device_name() if device == "cuda" else cpu_name()}
    told |= {"cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "ray": ray.__version__}
    told |= {"date": datetime.now(UTC).date().isoformat()}
    rows = measure_alone(model, device, batch, rounds, (requests, prompt_tokens, new_tokens))
    with get_context("spawn").Pool(clients) as pool:
        for replicas in map(int, order.split(",")):
            engines, over = max(replicas, 1), "over HTTP" if replicas else "over HTTP, without Ray"
            size = requests * engines // clients, prompt_tokens, new_tokens
            with server(replicas, words) as url:
                for number in range(rounds + 1):
                    found = http_rate(pool, [Load(url, *size, 100 * number + one) for one in range(1, clients + 1)])
                    if number:  # the first warms up
                        rows.append({"over": over, "engines": engines, "clients": clients, "tokens/s": found})
                        print(rows[-1], flush=True)
            pd.DataFrame(rows).assign(**told).to_csv(out, index=False)
    print(pd.DataFrame(rows).groupby(["over", "engines"])["tokens/s"].median().round(0))


if __name__ == "__main__":
    main()
