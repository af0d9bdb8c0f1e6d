"""Two lanes of a recorded step: what host and device did in it, as `pipeline_simulation` draws a simulated one."""

from __future__ import annotations

from ..checks import is_count, require, shown
from .pipeline_simulation import PLAN, READ, RUN, WAIT, Lanes, Span
from .timeline import PARTS, Kernel, Timeline

TO_HOST = "Memcpy DtoH"  # what brings the tokens
TOGETHER_US = 10.0  # a pause that is shorter lies between two kernels of a step, and is not drawn


def recorded_lanes(timeline: Timeline, steps_ahead: int, repeats: int = 3) -> Lanes:
    """The recorded step a few times in a row, as if all steps were like it. Times are in ms, with the profiler on.

    steps_ahead: of the pipeline that made the step; 0 or 1. With 1 the tokens that come to the host are those of the
    step that was in flight when this one began, and what the device does afterwards belongs to the one launched here.
    The host plans until the last of its parts ends, then waits until the tokens are there. Raises `ConfigError` for a
    timeline in which no tokens come.
    """
    require(steps_ahead in (0, 1), f"steps_ahead is {shown(steps_ahead)}: give 0 or 1")
    require(is_count(repeats), f"repeats is {shown(repeats)}: give 1 or more")
    copies = [kernel for kernel in timeline.kernels if kernel.name.startswith(TO_HOST)]
    require(bool(copies), f"no tokens come to the host in this step, by a {TO_HOST}: give one of a GPU")
    there = _end(copies[-1])
    planned = max(
        (r.start_us + r.duration_us for r in timeline.ranges if PARTS.get(r.name, "read") != "read"), default=0
    )
    waited = min(max(planned, there), timeline.step_us)
    host: list[Span] = []
    device: list[Span] = []
    for number in range(repeats):
        zero = number * timeline.step_us
        host.append(Span(PLAN, number + steps_ahead, zero, zero + planned))
        if waited > planned:
            host.append(Span(WAIT, number, zero + planned, zero + waited))
        host.append(Span(READ, number, zero + waited, zero + timeline.step_us))
        for start, end in _busy(timeline, there):
            later = steps_ahead if start >= there else 0
            device.append(Span(RUN, number + later, zero + start, zero + end))
    return Lanes(tuple(map(_in_ms, host)), tuple(map(_in_ms, _joined(device))))


def _busy(timeline: Timeline, there: float) -> list[tuple[float, float]]:
    """Start and end of each time in which the device works; it is cut where the tokens have come."""
    times: list[tuple[float, float]] = []
    for kernel in timeline.kernels:
        start, end = kernel.start_us, min(_end(kernel), timeline.step_us)
        cut = bool(times) and times[-1][0] < there <= start
        if times and not cut and start - times[-1][1] <= TOGETHER_US:
            times[-1] = (times[-1][0], max(end, times[-1][1]))
        else:
            times.append((start, end))
    return times


def _joined(spans: list[Span]) -> list[Span]:
    """Without the pauses that are too short to be drawn, where a step goes on in the next repeat."""
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].step == span.step and span.start - joined[-1].end <= TOGETHER_US:
            joined[-1] = joined[-1]._replace(end=span.end)
        else:
            joined.append(span)
    return joined


def _end(kernel: Kernel) -> float:
    return kernel.start_us + kernel.duration_us


def _in_ms(span: Span) -> Span:
    return span._replace(start=span.start / 1e3, end=span.end / 1e3)
