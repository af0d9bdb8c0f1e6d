"""What a benchmark prints: the articles' lines, with how much was measured and on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..engine.engine import InferenceEngine
from ..lessons import Lesson
from ..measure.metrics import per_request, percentiles, throughput
from ..measure.provenance import device_name, package_versions
from ..measure.workload import Run


@dataclass(frozen=True)
class Measured:
    """What a benchmark command has measured, and on which engine."""

    engine: InferenceEngine
    lesson: Lesson
    paged_attn: bool
    warmup_runs: int
    runs: Sequence[Run]


# -- printed ------------------------------------------------------------------------------------------------------


def print_scheduler_summary(mode: str, measured: Measured) -> None:
    """The summary of benchmark_scheduler: medians and means, over the runs, or over the requests of all runs."""
    runs = measured.runs
    samples = per_request(run.times for run in runs)
    decode = [throughput(run.num_tokens, run.stats.decode_seconds) for run in runs]
    total = [throughput(run.num_tokens, run.total_seconds) for run in runs]
    print(f"=== {mode} summary ===")
    print(f"Warmup runs: {measured.warmup_runs}")
    print(f"Measured runs: {len(runs)}")
    print(f"Decode time p50/mean: {p50_mean([run.stats.decode_seconds for run in runs], '.6f')} s")
    print(f"Total time p50/mean: {p50_mean([run.total_seconds for run in runs], '.6f')} s")
    print(f"Throughput(completion,decode) p50/mean: {p50_mean(decode)} tokens/s")
    print(f"Throughput(completion,total) p50/mean: {p50_mean(total)} tokens/s")
    print(f"Admission wait p50/mean: {p50_mean(ms(samples['queueing']))} ms")
    print(f"TTFT p50/mean: {p50_mean(ms(samples['ttft']))} ms")
    print(f"TPOT p50/mean: {p50_mean(ms(samples['tpot']))} ms/token")
    print(f"Latency p50/mean: {p50_mean(ms(samples['latency']))} ms")
    print_counts(measured)


def print_streaming_summary(measured: Measured) -> None:
    """The summary of benchmark_streaming; percentiles are over all requests (ITL: over all gaps) of all runs."""
    runs = measured.runs
    samples = per_request(run.times for run in runs)
    total = [throughput(run.num_tokens, run.total_seconds) for run in runs]
    print("=== streaming summary ===")
    print(f"Warmup runs: {measured.warmup_runs}")
    print(f"Measured runs: {len(runs)}")
    print(f"Admission wait p50/p95/p99: {p50_p95_p99(samples['queueing'])} ms")
    print(f"TTFT p50/p95/p99: {p50_p95_p99(samples['ttft'])} ms")
    print(f"TPOT p50/p95/p99: {p50_p95_p99(samples['tpot'])} ms/token")
    print(f"ITL p50/p95/p99: {p50_p95_p99(samples['itl'])} ms")
    print(f"Latency p50/p95/p99: {p50_p95_p99(samples['latency'])} ms")
    for number, (run, value) in enumerate(zip(runs, total, strict=True), start=1):
        if len(runs) > 1:
            tpot = p50_p95_p99(per_request([run.times])["tpot"]).split("/")[0]
            print(f"run{number} Throughput: {value:.2f} tokens/s | TPOT p50: {tpot} ms/token")
    print(f"Throughput (completion,total): {np.mean(total):.2f} tokens/s")
    print_counts(measured)


def print_counts(measured: Measured) -> None:
    """How much was measured, and on what."""
    runs, model = measured.runs, measured.engine.model
    requests = sum(len(run.times) for run in runs)
    tokens = sum(run.num_tokens for run in runs)
    preemptions = sum(run.stats.preemptions for run in runs)
    kind = "paged" if measured.paged_attn else "gathered dense"
    versions = ", ".join(f"{name} {found}" for name, found in package_versions().items() if found)
    print(f"N: {requests} requests, {tokens} completion tokens, {preemptions} preemptions")
    print(f"Lesson: {measured.lesson.number}, {measured.lesson.title}; attention over {kind} K and V")
    print(f"On: {model.name}, {device_name(model.device)}, {str(model.dtype).removeprefix('torch.')}, {versions}")


def ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * s for s in seconds]


def p50_mean(values: Sequence[float], form: str = ".2f") -> str:
    """Median and mean; n/a where there are no samples, or one that is undefined."""
    known = len(values) > 0 and not np.isnan(values).any()
    return "/".join(f"{v:{form}}" for v in (np.median(values), np.mean(values))) if known else "n/a"


def p50_p95_p99(seconds: Sequence[float]) -> str:
    """Percentiles of seconds, in ms; n/a where there are no samples."""
    return "/".join(f"{v:.2f}" for v in percentiles(ms(seconds))) if len(seconds) else "n/a"
