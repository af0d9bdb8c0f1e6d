"""What a benchmark prints: the articles' lines, with how much was measured and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.engine import InferenceEngine
from ..lessons import Lesson
from .metrics import percentiles
from .provenance import device_name, package_versions
from .samples import Samples


@dataclass(frozen=True)
class Measured:
    """What a benchmark command has measured, and on which engine. dense: as `--dense`."""

    engine: InferenceEngine
    lesson: Lesson
    dense: bool
    warmup_runs: int
    samples: Samples


def print_scheduler_summary(mode: str, measured: Measured) -> None:
    """The summary of benchmark_scheduler: medians and means, over the runs, or over the requests of all runs."""
    print(f"=== {mode} summary ===\nWarmup runs: {measured.warmup_runs}\nMeasured runs: {len(measured.samples.runs)}")
    for title, metric, unit, form in (
        ("Decode time", "decode time", "s", ".6f"),
        ("Total time", "total time", "s", ".6f"),
        ("Throughput(completion,decode)", "decode throughput", "tokens/s", ".2f"),
        ("Throughput(completion,total)", "total throughput", "tokens/s", ".2f"),
        ("Admission wait", "queueing", "ms", ".2f"),
        ("TTFT", "TTFT", "ms", ".2f"),
        ("TPOT", "TPOT", "ms/token", ".2f"),
        ("Latency", "latency", "ms", ".2f"),
    ):
        print(f"{title} p50/mean: {p50_mean(measured.samples.values(metric), form)} {unit}")
    print_what_ran(measured)


def print_streaming_summary(readers: str, measured: Measured) -> None:
    """The summary of benchmark_streaming; percentiles are over all requests (ITL: over all gaps) of all runs.

    readers: who read the streams; ITL is the host's, and delay how much later the reader had a token.
    """
    runs = measured.samples.each_run
    print(f"=== streaming summary ===\nWarmup runs: {measured.warmup_runs}\nMeasured runs: {len(runs)}")
    print(f"Readers: {readers}")
    for title, metric in (
        *(("Admission wait", "queueing"), ("TTFT", "TTFT"), ("TPOT", "TPOT"), ("ITL", "ITL")),
        *(("Reader ITL", "reader ITL"), ("Delay", "delay"), ("Latency", "latency")),
    ):
        unit = "ms/token" if metric == "TPOT" else "ms"
        print(f"{title} p50/p95/p99: {p50_p95_p99(measured.samples.values(metric))} {unit}")
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1:
            (rate,), tpot = run.throughputs, p50_p95_p99(run.values("TPOT")).split("/")[0]
            print(f"run{number} Throughput: {rate:.2f} tokens/s | TPOT p50: {tpot} ms/token")
    print(f"Throughput (completion,total): {measured.samples.figure('total throughput', 'mean'):.2f} tokens/s")
    print_what_ran(measured)


def print_what_ran(measured: Measured) -> None:
    """How much was measured, and on what."""
    runs, model = measured.samples.runs, measured.engine.model
    requests = sum(len(run.times) for run in runs)
    tokens = sum(run.num_tokens for run in runs)
    preemptions = sum(run.stats.preemptions for run in runs)
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items() if number)
    print(f"N: {requests} requests, {tokens} completion tokens, {preemptions} preemptions")
    print(f"Lesson: {measured.lesson.number}, {measured.lesson.title}; {attention_of(measured.dense)}")
    print(f"On: {model.name}, {device_name(model.device)}, {str(model.dtype).removeprefix('torch.')}, {versions}")


def attention_of(dense: bool) -> str:
    """The attention in words. dense: as `--dense`."""
    return f"attention over {'gathered dense' if dense else 'paged'} K and V"


def p50_mean(values: Sequence[float], form: str = ".2f") -> str:
    """Median and mean; n/a where there are no samples, or one that is undefined."""
    known = len(values) > 0 and not np.isnan(values).any()
    return "/".join(f"{v:{form}}" for v in (np.median(values), np.mean(values))) if known else "n/a"


def p50_p95_p99(values: Sequence[float]) -> str:
    """Percentiles; n/a where there are no samples, and for p95 and p99 where there is but one, which has no tail."""
    if len(values) == 1:
        return f"{values[0]:.2f}/n/a/n/a"
    return "/".join(f"{v:.2f}" for v in percentiles(values)) if len(values) else "n/a"
