"""What a benchmark says: the printed summary with the articles' lines, and the JSON document with every raw sample."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..engine import InferenceEngine
from .metrics import per_request, percentiles, throughput
from .workload import Run

PACKAGES = ("torch", "triton", "transformers", "numpy")
SOURCE = Path(__file__).resolve().parents[2]


# -- printed ------------------------------------------------------------------------------------------------------


def print_scheduler_summary(mode: str, warmup_runs: int, runs: Sequence[Run], engine: InferenceEngine) -> None:
    """The summary of benchmark_scheduler; runs are summarised by their median and mean, and so are requests."""
    samples = per_request(run.times for run in runs)
    decode = [throughput(run.num_tokens, run.stats.decode_seconds) for run in runs]
    total = [throughput(run.num_tokens, run.total_seconds) for run in runs]
    print(f"=== {mode} summary ===")
    print(f"Warmup runs: {warmup_runs}")
    print(f"Measured runs: {len(runs)}")
    print(f"Decode time p50/mean: {p50_mean([run.stats.decode_seconds for run in runs], '.6f')} s")
    print(f"Total time p50/mean: {p50_mean([run.total_seconds for run in runs], '.6f')} s")
    print(f"Throughput(completion,decode) p50/mean: {p50_mean(decode)} tokens/s")
    print(f"Throughput(completion,total) p50/mean: {p50_mean(total)} tokens/s")
    print(f"TTFT p50/mean: {p50_mean(ms(samples['ttft']))} ms")
    print(f"TPOT p50/mean: {p50_mean(ms(samples['tpot']))} ms/token")
    print(f"Latency p50/mean: {p50_mean(ms(samples['latency']))} ms")
    print_counts(runs, engine)


def print_streaming_summary(warmup_runs: int, runs: Sequence[Run], engine: InferenceEngine) -> None:
    """The summary of benchmark_streaming; percentiles are over all requests (ITL: over all gaps) of all runs."""
    samples = per_request(run.times for run in runs)
    total = [throughput(run.num_tokens, run.total_seconds) for run in runs]
    print("=== streaming summary ===")
    print(f"Warmup runs: {warmup_runs}")
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
    print_counts(runs, engine)


def print_counts(runs: Sequence[Run], engine: InferenceEngine) -> None:
    """How much was measured, and on what."""
    requests = sum(len(run.times) for run in runs)
    tokens = sum(run.num_tokens for run in runs)
    preemptions = sum(run.stats.preemptions for run in runs)
    model = engine.model
    versions = ", ".join(f"{name} {found}" for name, found in package_versions().items() if found)
    print(f"N: {requests} requests, {tokens} completion tokens, {preemptions} preemptions")
    print(f"On: {model.name}, {device_name(model.device)}, {str(model.dtype).removeprefix('torch.')}, {versions}")


def ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * s for s in seconds]


def p50_mean(values: Sequence[float], form: str = ".2f") -> str:
    """Median and mean; n/a where there are no samples."""
    return "/".join(f"{v:{form}}" for v in (np.median(values), np.mean(values))) if len(values) else "n/a"


def p50_p95_p99(seconds: Sequence[float]) -> str:
    """Percentiles of seconds, in ms; n/a where there are no samples."""
    return "/".join(f"{v:.2f}" for v in percentiles(ms(seconds))) if len(seconds) else "n/a"


# -- written ------------------------------------------------------------------------------------------------------


def document(command: str, argv: Sequence[str], settings: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON document of a benchmark. All times are in seconds, in a run from its start."""
    return {
        "command": shlex.join(["python", "-m", f"rosecourse.{command}", *argv]),
        **provenance(),
        "settings": settings,
        "units": "seconds; submitted, admitted and tokens count from the start of their run",
        "runs": [run_record(run) for run in runs],
    }


def run_record(run: Run) -> dict[str, Any]:
    """One run with every raw sample, to the microsecond."""

    def relative(moment: float) -> float:
        return round(moment - run.start, 6)

    return {
        "total_seconds": round(run.total_seconds, 6),
        "prefill_seconds": round(run.stats.prefill_seconds, 6),
        "decode_seconds": round(run.stats.decode_seconds, 6),
        "decode_steps": run.stats.decode_steps,
        "preemptions": run.stats.preemptions,
        "requests": [
            {
                "submitted": relative(times.submitted),
                "admitted": relative(times.admitted),
                "tokens": [relative(moment) for moment in times.tokens],
            }
            for times in run.times
        ],
    }


def provenance() -> dict[str, Any]:
    """Commit, dirty flag, host and versions: what a figure depends on, and nothing about whose machine it is."""
    cuda = torch.cuda.is_available()
    return {
        "commit": git("rev-parse", "HEAD"),
        "dirty": None if (status := git("status", "--porcelain")) is None else bool(status),
        "host": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "os": platform.platform(aliased=True, terse=True),
            "gpu": torch.cuda.get_device_name() if cuda else None,
        },
        "versions": {"python": platform.python_version(), **package_versions()},
    }


def git(*arguments: str) -> str | None:
    """What git says of the checkout that this package is; None where it is no checkout of its own."""
    try:
        top = subprocess.run(
            ["git", "rev-parse", "--show-toplevel"], cwd=SOURCE, capture_output=True, text=True, check=True
        ).stdout.strip()
        if Path(top) != SOURCE:
            return None
        return subprocess.run(
            ["git", *arguments], cwd=SOURCE, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def package_versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()} ({torch.get_num_threads()} threads)"


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
