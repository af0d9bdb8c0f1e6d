"""Each metric, defined once, and as vLLM's serving benchmark defines it where it has it.

All inputs are the times of `SessionTimes`, in seconds. Percentiles are numpy's linear ones. Inter-token latencies and
delays are pooled over requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..request.session import SessionTimes


def ttft(times: SessionTimes) -> float:
    """Time to first token, in seconds: from the submission (the scheduled arrival) to the first token."""
    return times.tokens[0] - times.submitted


def tpot(times: SessionTimes) -> float | None:
    """Time per output token, in seconds: (last - first) / (n - 1). None for a request of one token, which has none."""
    steps = len(times.tokens) - 1
    return (times.tokens[-1] - times.tokens[0]) / steps if steps > 0 else None


def itl(times: SessionTimes) -> list[float]:
    """Inter-token latencies, in seconds: the gaps between tokens, as the host reads them from the device."""
    return np.diff(times.tokens).tolist()


def reader_itl(times: SessionTimes) -> list[float]:
    """Inter-token latencies of the reader, in seconds; none of a request that nobody streamed."""
    return np.diff(times.read).tolist()


def delay(times: SessionTimes) -> list[float]:
    """Of each token, from the moment at which the host read it until its reader had it, in seconds."""
    return [read - token for token, read in zip(times.tokens, times.read, strict=False)]


def latency(times: SessionTimes) -> float:
    """End-to-end latency, in seconds: from the submission to the last token."""
    return times.tokens[-1] - times.submitted


def queueing(times: SessionTimes) -> float:
    """Admission wait, in seconds: from the submission until the request had its blocks. It is a part of TTFT."""
    return times.admitted - times.submitted


def throughput(num_tokens: int, seconds: float) -> float:
    """Completion tokens a second.

    Over the seconds spent in decode steps it is the articles' Throughput(completion,decode), which counts the first
    tokens too although prefill makes them; over the whole run's seconds it is Throughput(completion,total).
    """
    return num_tokens / seconds if seconds > 0 else float("nan")


def per_request(runs: Iterable[Sequence[SessionTimes]]) -> dict[str, list[float]]:
    """The samples of every request of every run, in seconds: ttft, tpot, itl, reader_itl, delay, latency, queueing."""
    requests = [times for run in runs for times in run if times.tokens]
    samples = {metric.__name__: [metric(times) for times in requests] for metric in (ttft, latency, queueing)}
    samples |= {metric.__name__: [x for t in requests for x in metric(t)] for metric in (itl, reader_itl, delay)}
    return samples | {"tpot": [value for times in requests if (value := tpot(times)) is not None]}


# The metrics that tables and files name, and the unit in which they show them.
UNITS = {
    "decode time": "s",
    "total time": "s",
    "decode throughput": "tokens/s",
    "total throughput": "tokens/s",
    "TTFT": "ms",
    "TPOT": "ms/token",
    "ITL": "ms",
    "reader ITL": "ms",
    "delay": "ms",
    "latency": "ms",
    "queueing": "ms",
}
PERCENTILES = {"p50": 50, "p95": 95, "p99": 99}

# What each name means, in its own words, for the files that are written.
DEFINITIONS = {
    metric.__name__: " ".join((metric.__doc__ or "").split())
    for metric in (ttft, tpot, itl, reader_itl, delay, latency, queueing, throughput)
}
