"""Measure budgets of tokens a step under mixed traffic, in turns: what long prompts do to those who decode.

    PYTHONPATH=. python tools/record/chunked.py --model llama-8b --longest 4096 --batch 16 --out data/chunked.csv
    PYTHONPATH=. python tools/record/chunked.py --requests 32 --rounds 5 --budgets none,32,64,128,256,512 --out OUT.csv

The first is for a GPU. Three of four prompts are short and one is long; requests arrive at random, at a share of the
rate at which lesson 071 without a budget serves them when they come all at once. The first engine runs twice in each
round, as the control. On a CPU the clock is that of the process, which other work on the machine does not move.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import pandas as pd
import torch
from ladder import chosen_model

import rosecourse as rc
from rosecourse.lessons import LESSONS
from rosecourse.measure.metrics import per_request
from rosecourse.measure.provenance import device_name
from rosecourse.measure.stats import order_of_round
from rosecourse.measure.workload import Request, Run, Workload, run_scheduler
from rosecourse.models.load import RANDOM_SHAPES, SHIPPED

SHORT, ONE_IN_LONG = (8, 64), 4
NEW_TOKENS = (16, 128)
CLOCKS = ("rosecourse.measure.workload.time", "rosecourse.engine.scheduler.time", "rosecourse.engine.queues.time")


class CPUClock:
    """In the place of `time`: seconds that this process has computed, and those that it would have slept."""

    slept = 0.0

    def perf_counter(self) -> float:
        return time.process_time() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


def traffic(num_requests: int, longest: int, vocab_size: int, rate: float) -> Workload:
    """Requests at `rate` a second on the average; an infinite rate is all at once."""
    draw = np.random.default_rng(0)
    arrivals = np.cumsum(draw.exponential(1, num_requests)) / rate
    requests = []
    for number, arrival in enumerate(arrivals):
        between = (longest // 2, longest) if number % ONE_IN_LONG == 0 else SHORT
        prompt = draw.integers(1, vocab_size, draw.integers(*between, endpoint=True))
        most = int(draw.integers(*NEW_TOKENS, endpoint=True))
        params = rc.SamplingParams(max_new_tokens=most, stop_on_eos=False)
        requests.append(Request(tuple(prompt.tolist()), params, float(arrival)))
    return Workload(tuple(requests))


def figures(run: Run) -> dict[str, float]:
    """What one run gave, in milliseconds and tokens a second."""
    found = per_request([run.times])
    return {
        "tokens/s": run.num_tokens / run.total_seconds,
        "ITL p50": 1e3 * float(np.percentile(found["itl"], 50)),
        "ITL p99": 1e3 * float(np.percentile(found["itl"], 99)),
        "TTFT p50": 1e3 * float(np.percentile(found["ttft"], 50)),
        "TTFT p99": 1e3 * float(np.percentile(found["ttft"], 99)),
    }


def measured(
    engines: list[rc.InferenceEngine], num_requests: int, longest: int, load: float, rounds: int
) -> tuple[list[dict[str, float]], float]:
    """The figures of each engine in each round, and the rate of the arrivals."""
    vocab_size = engines[0].model.shape.vocab_size
    burst = [run_scheduler(engines[0], traffic(num_requests, longest, vocab_size, np.inf)) for _ in "12"]
    rate = load * num_requests / burst[-1].total_seconds
    work = traffic(num_requests, longest, vocab_size, rate)
    rows = []
    for number in range(rounds + 1):
        for place in order_of_round(len(engines), number):
            run = run_scheduler(engines[place], work)
            if number:
                rows.append({"place": place, "round": number} | figures(run))
        print(f"round {number} of {rounds}", flush=True)
    return rows, rate


@click.command(help=__doc__)
@click.option("--model", "name", type=click.Choice([*RANDOM_SHAPES, *SHIPPED]), help="gpt2 on a GPU, else tiny-gpt2.")
@click.option("--requests", "num_requests", default=256, type=click.IntRange(8))
@click.option("--longest", default=0, help="Tokens of the longest prompt. 0: what the model's context allows.")
@click.option("--batch", default=0, help="Sessions that run together. 0: 64 on a GPU, 16 on a CPU.")
@click.option("--budgets", default="none,128,256,512,1024,2048", help="Tokens a step; none is 071 as it is.")
@click.option("--load", default=0.8, help="Share of the rate at which all requests at once are served.")
@click.option("--rounds", default=7, type=click.IntRange(1), help="Rounds that count, after one that warms up.")
@click.option("--out", type=click.Path(dir_okay=False, writable=True, path_type=Path), required=True, help="A CSV.")
def main(
    name: str | None, num_requests: int, longest: int, batch: int, budgets: str, load: float, rounds: int, out: Path
) -> None:
    cuda = torch.cuda.is_available()
    torch.set_num_threads(torch.get_num_threads() if cuda else 1)
    model = chosen_model(name or ("gpt2" if cuda else "tiny-gpt2"))
    longest = longest or model.shape.context - NEW_TOKENS[1]
    config = rc.EngineConfig(
        max_batch_size=batch or (64 if cuda else 16), max_seq_len=longest + NEW_TOKENS[1], prefix_cache=False
    )
    known = [None if text == "none" else int(text) for text in budgets.split(",")]
    engines = [
        rc.InferenceEngine(model, replace(config, max_num_batched_tokens=budget), LESSONS[-1].after)
        for budget in (*known, known[0])
    ]
    clock = CPUClock()
    with ExitStack() as clocks:
        for place in () if cuda else CLOCKS:
            clocks.enter_context(patch(place, clock))
        rows, rate = measured(engines, num_requests, longest, load, rounds)
    table = pd.DataFrame(rows).sort_values(["place", "round"])
    table.insert(0, "budget", [str([*known, "control"][place] or "none") for place in table.pop("place")])
    table = table.round(3).assign(
        model=model.name.removeprefix("random "),
        requests=f"{num_requests} x {NEW_TOKENS[0]} to {NEW_TOKENS[1]} tokens at {rate:.1f} a second",
        prompts=f"{SHORT[0]} to {SHORT[1]} tokens, one in {ONE_IN_LONG} of {longest // 2} to {longest}",
        batch=config.max_batch_size,
        gpu=device_name(model.device),
        torch=torch.__version__,
        clock="of the machine" if cuda else "CPU time of the process",
        date=datetime.now(UTC).date().isoformat(),
    )
    table.to_csv(out, mode="a", header=not out.exists(), index=False)
    print(table.groupby("budget", sort=False)[["tokens/s", "ITL p50", "ITL p99", "TTFT p99"]].median())


if __name__ == "__main__":
    main()
