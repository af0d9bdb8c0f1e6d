"""Each metric, defined once, and as vLLM's serving benchmark defines it where it has it.

All inputs are the times of `SessionTimes`, in seconds; each result is in the unit that its docstring names. Percentiles
are numpy's linear ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..request.session import SessionTimes


def ttft(times: SessionTimes) -> float:
    """Time to first token, in seconds: from the submission (the scheduled arrival) to the first token."""
    return times.tokens[0] - times.submitted


def tpot(times: SessionTimes) -> float | None:
    """Time per output token, in seconds: (last - first) / (n - 1). None for a request of one token, which has none."""
    if len(times.tokens) < 2:
        return None
    return (times.tokens[-1] - times.tokens[0]) / (len(times.tokens) - 1)


def itl(times: SessionTimes) -> list[float]:
    """Inter-token latencies, in seconds: the gaps between consecutive tokens, as the host reads them from the device.

    They are pooled over requests.
    """
    return _gaps(times.tokens)


def reader_itl(times: SessionTimes) -> list[float]:
    """Inter-token latencies of the reader, in seconds: the gaps between the moments at which it had consecutive tokens.

    They are pooled over requests; a request that nobody streamed has none.
    """
    return _gaps(times.read)


def delay(times: SessionTimes) -> list[float]:
    """From the moment at which the host read a token to the moment at which its reader had it, in seconds, of each.

    They are pooled over requests; a request that nobody streamed has none.
    """
    return [read - token for token, read in zip(times.tokens, times.read, strict=False)]


def _gaps(moments: Sequence[float]) -> list[float]:
    return [b - a for a, b in pairwise(moments)]


def last_step(times: SessionTimes) -> float:
    """Between the last two tokens, in seconds; NaN for a request of one token, which has no step."""
    return times.tokens[-1] - times.tokens[-2] if len(times.tokens) > 1 else float("nan")


def latency(times: SessionTimes) -> float:
    """End-to-end latency, in seconds: from the submission to the last token."""
    return times.tokens[-1] - times.submitted


def queueing(times: SessionTimes) -> float:
    """Admission wait, in seconds: from the submission until the request had its blocks. It is a part of TTFT."""
    return times.admitted - times.submitted


@dataclass(frozen=True)
class Limits:
    """What a good request keeps to, in seconds.

    ttft: its time to the first token is at most this; gap: so is the p99 of its own gaps between tokens. Requests a
    second that keep to such limits are the *goodput* of DistServe (OSDI 2024).
    """

    ttft: float
    gap: float

    def __str__(self) -> str:
        return f"TTFT at most {1e3 * self.ttft:.0f} ms and ITL p99 at most {1e3 * self.gap:.1f} ms"

    def met_by(self, times: SessionTimes) -> bool:
        """Whether a request kept to them."""
        gaps = itl(times)
        return ttft(times) <= self.ttft and (not gaps or float(np.percentile(gaps, 99)) <= self.gap)


def throughput(num_tokens: int, seconds: float) -> float:
    """Completion tokens a second.

    Over the seconds spent in decode steps it is the articles' Throughput(completion,decode), which counts the first
    tokens too although prefill makes them; over the whole run's seconds it is Throughput(completion,total).
    """
    return num_tokens / seconds if seconds > 0 else float("nan")


def per_request(runs: Iterable[Sequence[SessionTimes]]) -> dict[str, list[float]]:
    """The samples of every request of every run, in seconds: ttft, tpot, itl, reader_itl, delay, latency, queueing."""
    requests = [times for run in runs for times in run if times.tokens]
    return {
        "ttft": [ttft(t) for t in requests],
        "tpot": [value for t in requests if (value := tpot(t)) is not None],
        "itl": [gap for t in requests for gap in itl(t)],
        "reader_itl": [gap for t in requests for gap in reader_itl(t)],
        "delay": [one for t in requests for one in delay(t)],
        "latency": [latency(t) for t in requests],
        "queueing": [queueing(t) for t in requests],
    }


def percentiles(samples: Sequence[float] | np.ndarray, which: Sequence[float] = (50, 95, 99)) -> list[float]:
    """Linear percentiles of samples; nan where there are none."""
    return np.percentile(samples, which).tolist() if len(samples) else [float("nan")] * len(which)


# The metrics that tables and files name, and the unit in which they show them.
UNITS = {
    "decode time": "s",
    "last step": "s",  # between the last two tokens of the first request
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
