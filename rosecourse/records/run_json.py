"""A run as JSON: in plain seconds, as a benchmark's --json file has it, and packed, as a recorded file has it.

All sessions of a step get their tokens at one moment, so a packed run stores each moment once. All its times are whole
microseconds from the start of the run: `moments_us` is the first moment and then the gap from each to the next;
`submitted_us` and `admitted_us` have one number a request. `tokens` has a list for each request, [first, count, first,
count, ...]: its tokens came at `count` consecutive moments from moment number `first` on, and so on. Only what is below
a microsecond is lost, and the token ids are not stored: every metric of `measure.metrics` can be computed again.

Where the tokens were streamed, `read_us` has a list for each request: when its reader had the first token, and then the
gaps. An empty list stands for that of the request before, as one reader has the tokens of all requests at one moment.
Older files do not have the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..engine.scheduler import SchedulerStats
from ..measure.workload import Run
from ..request.session import SessionTimes
from .sealed import require_form

PACKED_RUN = {  # see `sealed.require_form`
    "total_us": int,
    "prefill_us": int,
    "decode_us": int,
    "decode_steps": int,
    "decode_bytes": int,
    "preemptions": int,
    "submitted_us": [int],
    "admitted_us": [int],
    "moments_us": [int],
    "tokens": [[int]],
}


def plain_run(run: Run) -> dict[str, Any]:
    """A run with every raw sample, in seconds from its start, to the microsecond."""

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
                "read": [relative(moment) for moment in times.read],
            }
            for times in run.times
        ],
    }


def packed_run(run: Run, decode_bytes: int) -> dict[str, Any]:
    """A run as a recorded file has it, of the form `PACKED_RUN`.

    decode_bytes: what its decode steps must at least read, from `measure.floor.bytes_per_run`.
    """

    def us(moment: float) -> int:
        return round(1e6 * (moment - run.start))

    moments = sorted({us(moment) for times in run.times for moment in times.tokens})
    number = {moment: n for n, moment in enumerate(moments)}
    read = [np.diff([us(moment) for moment in times.read], prepend=0).tolist() for times in run.times]
    return {
        "total_us": round(1e6 * run.total_seconds),
        "prefill_us": round(1e6 * run.stats.prefill_seconds),
        "decode_us": round(1e6 * run.stats.decode_seconds),
        "decode_steps": run.stats.decode_steps,
        "decode_bytes": decode_bytes,
        "preemptions": run.stats.preemptions,
        "submitted_us": [us(times.submitted) for times in run.times],
        "admitted_us": [us(times.admitted) for times in run.times],
        "moments_us": np.diff(moments, prepend=0).tolist(),
        "tokens": [_ranges([number[us(moment)] for moment in times.tokens]) for times in run.times],
        **({"read_us": _less_what_repeats(read)} if all(read) else {}),
    }


def unpacked_run(packed: dict[str, Any]) -> Run:
    """The run that `packed_run` packed, of the form `PACKED_RUN`. Raises `ValueError` for one that it cannot have."""
    moments = (np.cumsum(packed["moments_us"], dtype=np.int64) / 1e6).tolist()
    requests = zip(packed["submitted_us"], packed["admitted_us"], packed["tokens"], strict=True)
    times = [
        SessionTimes(submitted / 1e6, admitted / 1e6, _seconds_at(moments, tokens))
        for submitted, admitted, tokens in requests
    ]
    if not times or min(packed["total_us"], packed["decode_us"]) <= 0 or min(packed["moments_us"]) < 0:
        raise ValueError("a run without requests, or without time")
    if "read_us" in packed:
        _add_readers(times, packed["read_us"])
    stats = SchedulerStats(
        prefill_seconds=packed["prefill_us"] / 1e6,
        decode_seconds=packed["decode_us"] / 1e6,
        decode_steps=packed["decode_steps"],
        preemptions=packed["preemptions"],
    )
    return Run(0.0, packed["total_us"] / 1e6, times, None, stats)


def _ranges(numbers: Sequence[int]) -> list[int]:
    """[4, 5, 6, 9] as first, count, first, count: [4, 3, 9, 1]."""
    ranges: list[int] = []
    for number in numbers:
        if ranges and number == ranges[-2] + ranges[-1]:
            ranges[-1] += 1
        else:
            ranges += [number, 1]
    return ranges


def _seconds_at(moments: list[float], ranges: Sequence[int]) -> list[float]:
    """The moments in these ranges, all in seconds."""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    if not pairs or any(first < 0 or count < 1 or first + count > len(moments) for first, count in pairs):
        raise ValueError("a request's tokens came at moments that are not there")
    return [moment for first, count in pairs for moment in moments[first : first + count]]


def _less_what_repeats(rows: list[list[int]]) -> list[list[int]]:
    """The rows, with an empty one in the place of each that is as the row before."""
    return [[] if number and row == rows[number - 1] else row for number, row in enumerate(rows)]


def _add_readers(times: list[SessionTimes], read_us: Any) -> None:
    """Give the requests their readers' moments. Raises `ValueError` for moments that no reader can have had."""
    require_form(read_us, [[int]], "read_us")
    gaps: list[int] = []
    for one, row in zip(times, read_us, strict=True):
        gaps = row or gaps
        moments = np.cumsum(gaps, dtype=np.int64)
        if len(gaps) != len(one.tokens) or min(gaps) < 0 or np.any(moments / 1e6 < one.tokens):
            raise ValueError("a reader did not have each token once, after it was there")
        one.read = (moments / 1e6).tolist()
