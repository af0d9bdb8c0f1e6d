"""What a benchmark says: the printed summary with the articles' lines, and the JSON document with every raw sample."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..engine import InferenceEngine
from ..lessons import Lesson
from .metrics import DEFINITIONS, per_request, percentiles, throughput
from .workload import Run

PACKAGES = ("torch", "triton", "transformers", "numpy")
SOURCE = Path(__file__).resolve().parents[2]
MEASURED_FILES = ("rosecourse", "data/tiny-gpt2")  # a change here may change a figure


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


# -- written ------------------------------------------------------------------------------------------------------


def document(command: str, settings: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """The JSON document of a benchmark. All times are in seconds, in a run from its start."""
    return {
        "command": command,
        **provenance(),
        "settings": settings,
        "units": "seconds; submitted, admitted and tokens count from the start of their run",
        "definitions": DEFINITIONS,
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
        "dirty": None if (status := git("status", "--porcelain", "--", *MEASURED_FILES)) is None else bool(status),
        "host": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "os": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if cuda else None,
        },
        "versions": {"rosecourse": __version__, "python": platform.python_version(), **package_versions()},
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
    threads = torch.get_num_threads()
    return f"{cpu_name()} ({threads} thread{'s' if threads > 1 else ''})"


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if sys.platform == "linux" and cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
