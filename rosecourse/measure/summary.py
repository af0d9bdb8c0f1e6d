"""What a benchmark prints: the articles' lines, with how much was measured and on what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.engine import InferenceEngine
from ..lessons import lesson
from .metrics import UNITS
from .provenance import device_name, package_versions
from .samples import OF_A_RUN, Samples

# The articles' names; the others are those of the metrics.
TITLES = {
    "decode throughput": "Throughput(completion,decode)",
    "total throughput": "Throughput(completion,total)",
    "queueing": "Admission wait",
}
SCHEDULER = ("decode time", "total time", *TITLES, "TTFT", "TPOT", "latency")
STREAMING = ("queueing", "TTFT", "TPOT", "ITL", "reader ITL", "delay", "latency", "total throughput")


def print_summary(
    title: str,
    engine: InferenceEngine,
    samples: Samples,
    metrics: Sequence[str],
    statistics: Sequence[str],
    warmup_runs: int,
    dense: bool,
) -> None:
    """Each metric in a line: its figures of a run, and of these the median over the runs; and what ran, on what.

    samples: named by the number of the lesson. dense: as `--dense`.
    """
    runs, model, rung = samples.runs, engine.model, lesson(samples.name)
    print(f"=== {title} summary ===\nWarmup runs: {warmup_runs}\nMeasured runs: {len(runs)}")
    for metric in metrics:
        form = ".6f" if UNITS[metric] == "s" else ".2f"
        names = statistics[:1] if metric in OF_A_RUN else statistics  # a run has one such figure
        figures = [samples.typical(metric, name) for name in names]
        told = "n/a" if np.isnan(figures).any() else "/".join(f"{figure:{form}}" for figure in figures)
        print(f"{TITLES.get(metric, metric[0].upper() + metric[1:])} {'/'.join(names)}: {told} {UNITS[metric]}")
    requests, tokens = sum(len(run.times) for run in runs), sum(run.num_tokens for run in runs)
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items() if number)
    print(
        f"N: {requests} requests, {tokens} completion tokens, {sum(run.stats.preemptions for run in runs)} preemptions"
    )
    print(f"Lesson: {rung.number}, {rung.title}; {attention_of(dense)}")
    print(f"On: {model.name}, {device_name(model.device)}, {str(model.dtype).removeprefix('torch.')}, {versions}")


def attention_of(dense: bool) -> str:
    """The attention in words. dense: as `--dense`."""
    return f"attention over {'gathered dense' if dense else 'paged'} K and V"
