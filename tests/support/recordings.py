"""Recorded files made by hand: runs with known times, and the documents and files that hold them."""

import json

from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.lessons.workloads import ARTICLES
from rosecourse.measure.timeline import STEP, Kernel, Range, Timeline
from rosecourse.measure.workload import Run
from rosecourse.records.recordings import FORMAT, asked_of
from rosecourse.records.run_json import packed_run
from rosecourse.records.sealed import seal
from rosecourse.request.session import SessionTimes

TRAFFIC = {"num_requests": 2, "max_new_tokens": 256, "traffic_seed": 0}
KINDS = ("inside", "boundary")
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


def mixed(step):
    """Requests of the mixed traffic of `TRAFFIC`, which are in every step from the first on."""
    counts = [params.max_new_tokens for params in asked_of(TRAFFIC)]
    return run_of([[step * n for n in range(1, count + 1)] for count in counts])


def asked_in(rungs):
    """The settings of a workload whose requests are those of the first run, which are all alike."""
    first = next(iter(rungs.values()))[0]
    return {"num_requests": len(first.times), "max_new_tokens": len(first.times[0].tokens)}


def head_of(workload="A", **changes):
    """What a recorded file says of where it comes from."""
    work = ARTICLES.get(workload, ARTICLES["A"])
    return {
        "format": FORMAT,
        "workload": workload,
        "titles": {"035": "the first", "036": "the second", "038": "the third"},
        "command": f"rosecourse record --workloads {workload[0]}",
        "date": "2026-11-21T08:00:00+00:00",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "host": {"cpu": "a CPU", "gpu": "NVIDIA H200", "driver": "580.1"},
        "versions": {"torch": "2.11.0", "triton": None},
        "settings": {
            "benchmark": work.benchmark,
            "num_requests": work.num_requests,
            "max_new_tokens": work.max_new_tokens,
            "max_batch_size": work.max_batch_size,
            "readers": work.readers,
            "block_size": 64,
            "prompt_tokens": 1,
            "rate": None,
            "model": "random gpt2",
            "dtype": "float16",
        },
        "units": "",
        "copy_bytes_per_second": 4e12,
    } | changes


def document_of(rungs, workload="A", **changes):
    """A sealed document of these runs, by number of the lesson."""
    head = head_of(workload)
    document = head | {
        "settings": head["settings"] | (asked_in(rungs) if workload in ARTICLES else TRAFFIC),
        "titles": {number: f"title of {number}" for number in rungs},
        "definitions": {},
        "same_tokens": True,
        "tokens_sha256": "",
        "rounds": len(next(iter(rungs.values()))),
        "rungs": {number: [packed_run(run, 10**9) for run in runs] for number, runs in rungs.items()},
    }
    return seal(document | changes)


def twice_as_fast(before="035", after="036", workload="A", **changes):
    """The document of two rungs in five rounds, the later one twice as fast."""
    one = steady if workload in ARTICLES else mixed
    rungs = {before: [one(2 * step) for step in STEPS], after: [one(step) for step in STEPS]}
    return document_of(rungs, workload, **changes)


def timeline_document(kind, kernels=3):
    """A step of 2 ms, whose kernels of 100 us each run side by side in pairs."""
    done = [Kernel("a_kernel", "other", 100.0 * (n // 2), 100.0) for n in range(kernels)]
    return Timeline((Range(STEP, 0.0, 2000.0),), tuple(done), "NVIDIA H200", 1500.0, kind, 256).document()


def steps_document(counts=None, workload="A", **changes):
    """A sealed document of the steps of three rungs. counts: of `append_token calls`, by rung, inside and boundary."""
    counts = counts or {"035": (48, 48), "036": (48, 48), "038": (0, 48)}
    milliseconds = {number: len(counts) - place for place, number in enumerate(counts)}  # each faster than the last
    document = head_of(workload) | {
        "titles": {number: f"title of {number}" for number in counts},
        "batch": 64,
        "context": 256,
        "chunk": 4,
        "step_bytes": 10**9,
        "parts": {
            number: {part: [one * 10**6 for _ in range(8)] for part in ("block_tables", "forward", "kv_append", "rest")}
            for number, one in milliseconds.items()
        },
        "counts": {
            number: {kind: {"append_token calls": calls, "copy": 1} for kind, calls in zip(KINDS, both, strict=True)}
            for number, both in counts.items()
        },
        "timelines": {number: {kind: timeline_document(kind) for kind in KINDS} for number in counts},
    }
    return seal(document | changes)


def write_recording(path, document):
    """Write a document where recordings lie; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
