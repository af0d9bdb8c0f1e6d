"""Recorded files made by hand: runs with known times, and the files that hold them."""

import json

import numpy as np
import pandas as pd

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.samples import figure_name, figure_of
from rosecourse.measure.workload import Run
from rosecourse.records.runs import COLUMNS, FIGURES, FLOOR
from rosecourse.request.session import SessionTimes

STEPS = [0.004, 0.0042, 0.0041, 0.004, 0.0044]  # seconds of a step, in five runs


def run_of(times, start=100.0, decode_seconds=None):
    """A run with these token times, in seconds after its start."""
    times = [SessionTimes(start, start + 1e-4, [start + t for t in tokens]) for tokens in times]
    end = max(t.tokens[-1] for t in times) - start
    stats = SchedulerStats(prefill_seconds=0.001, decode_seconds=decode_seconds or end, decode_steps=3)
    return Run(start, end, times, None, stats)


def steady(step, requests=2, tokens=4):
    """Requests that are in every step from the first on."""
    return run_of([[step * n for n in range(1, tokens + 1)]] * requests)


def twice_as_fast(before="035", after="036"):
    """Two rungs in five rounds, the later one twice as fast."""
    return {before: [steady(2 * step) for step in STEPS], after: [steady(step) for step in STEPS]}


def write_recording(folder, rungs, workload="A", twice=(), gpu="nvidia-h200"):
    """Put the runs of each rung into folder/<gpu>, beside what is there; returns runs.csv.

    twice: runs of a second time, by rung. The floor of each run is a tenth of its decode time.
    """
    place = folder / gpu
    place.mkdir(parents=True, exist_ok=True)
    every = [(number, 0, runs) for number, runs in rungs.items()]
    every += [(number, 1, runs) for number, runs in dict(twice).items()]
    rows, gaps = [], []
    for number, again, runs in every:
        for turn, run in enumerate(runs, 1):
            figures = {figure_name(*one): figure_of(run, *one) for one in FIGURES}
            stats = run.stats
            counts = (0.1, stats.prefill_seconds, stats.decode_steps, stats.preemptions)
            keys = {"workload": workload, "lesson": number, "twice": again, "round": turn}
            rows.append(keys | figures | dict(zip(COLUMNS[COLUMNS.index(FLOOR) :], counts, strict=True)))
        if not again:
            along = 1e3 * np.median([np.diff(run.times[0].tokens) for run in runs], axis=0)
            gaps += [(workload, number, token, gap) for token, gap in enumerate(along, 2)]
    first = next(iter(rungs.values()))
    tables = {
        "runs.csv": pd.DataFrame(rows, columns=COLUMNS),
        "gaps.csv": pd.DataFrame(gaps, columns=["workload", "lesson", "token", "milliseconds"]),
    }
    for name, table in tables.items():
        path = place / name
        there = [pd.read_csv(path, dtype={"lesson": str}).query("workload != @workload")] if path.exists() else []
        pd.concat([*there, table]).to_csv(path, index=False)
    path = place / "runs.json"
    about = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(about | {workload: about_of(first)}))
    return place / "runs.csv"


def about_of(runs):
    """What runs.json says of a workload."""
    conditions = {
        "requests": len(runs[0].times),
        "tokens": runs[0].num_tokens,
        "prompt_tokens": 1,
        "block_size": 64,
        "rounds": len(runs),
        "model": "random gpt2",
        "dtype": "float16",
        "device": "NVIDIA H200",
        "torch": "2.11.0",
        "same_tokens": True,
    }
    return {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": None},
        "commit": "0123456789abcdef",
        "date": "2026-11-21T08:00:00+00:00",
        "command": "python tools/record/runs.py measure",
        "copy_bytes_per_second": 4e12,
        "conditions": conditions,
    }
