"""Recorded files made by hand: runs with known times, and the documents and files that hold them."""

import json

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.workload import Run
from rosecourse.records.comparisons import FORMAT
from rosecourse.records.run_json import packed_run
from rosecourse.records.sealed import seal
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


def document_of(before, after, lesson="036", **changes):
    """A sealed document of these runs."""
    document = {
        "format": FORMAT,
        "lesson": lesson,
        "title": "a title",
        "command": "rosecourse record --lessons 036",
        "date": "2026-11-21T08:00:00+00:00",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "host": {"cpu": "a CPU", "gpu": "NVIDIA H200", "driver": "580.1"},
        "versions": {"torch": "2.11.0", "triton": None},
        "settings": {
            "benchmark": "benchmark_scheduler",
            "num_requests": 64,
            "max_new_tokens": 512,
            "max_batch_size": 64,
            "block_size": 64,
            "model": "random gpt2",
            "dtype": "float16",
        },
        "units": "",
        "definitions": {},
        "same_tokens": True,
        "copy_bytes_per_second": 4e12,
        "before": [packed_run(run, 10**9) for run in before],
        "after": [packed_run(run, 10**9) for run in after],
    }
    return seal(document | changes)


def twice_as_fast(lesson="036", **changes):
    """The document of five pairs, `after` twice as fast as `before`."""
    return document_of([steady(2 * step) for step in STEPS], [steady(step) for step in STEPS], lesson, **changes)


def write_recording(path, document):
    """Write a document where recordings lie; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
