#!/usr/bin/env python3
"""How often `compare` tells a difference where there is none: an engine with itself, again and again, beside a load.

    python tools/false_alarms.py > data/false_alarms.csv     100 comparisons, beside a program that works on and off
    python tools/false_alarms.py --count 20

Prints a row for each figure of a table: how many verdicts name a difference, with the control and without.
Exit status 1 where more than 5 in 100 verdicts on a figure do.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import date

import pandas as pd
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, load_model
from rosecourse.measure.compare import HEADLINES, compare
from rosecourse.measure.provenance import git
from rosecourse.measure.samples import figure_name
from rosecourse.measure.stats import NO_DIFFERENCE
from rosecourse.measure.workload import Workload

MOST = 0.05
LOAD = """
import random, time
rng = random.Random(0)
while True:
    end = time.perf_counter() + rng.uniform(0.0, 2.0)
    while time.perf_counter() < end:
        sum(range(1000))
    time.sleep(rng.uniform(0.0, 2.0))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="comparisons")
    count = parser.parse_args().count
    torch.set_num_threads(1)  # as in the notebooks: threads that wait for each other would be most of the time
    model, config = load_model(), EngineConfig(max_batch_size=8, prefix_cache=False)
    rng = random.Random(0)
    prompts = [[rng.randrange(model.shape.vocab_size) for _ in range(8)] for _ in range(8)]
    workload = Workload.of(prompts, SamplingParams(max_new_tokens=16, stop_on_eos=False))
    told: Counter[tuple[str, str]] = Counter()
    alone: Counter[tuple[str, str]] = Counter()
    load = subprocess.Popen([sys.executable, "-c", LOAD])
    try:
        for _ in range(count):
            found = compare(InferenceEngine(model, config), InferenceEngine(model, config), workload)
            for figure in HEADLINES:
                better = found.ratio(*figure)
                told[figure] += better.verdict != NO_DIFFERENCE
                alone[figure] += replace(better, control=None).verdict != NO_DIFFERENCE
    finally:
        load.kill()
    names = [figure_name(*figure) for figure in HEADLINES]
    rows = pd.DataFrame({"figure": names, "comparisons": count, "pairs": found.pairs})
    rows["with control"], rows["without control"] = ([one[figure] for figure in HEADLINES] for one in (told, alone))
    rows = rows.assign(device=found.conditions.device, torch=found.conditions.torch, commit=git("rev-parse", "HEAD"))
    rows.assign(date=date.today()).to_csv(sys.stdout, index=False)
    return int(max(told.values()) > MOST * count)


if __name__ == "__main__":
    sys.exit(main())
