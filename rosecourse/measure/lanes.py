"""Two simulations: a pipeline of decode steps (lesson 068), and kernels in a row (lesson 071). Nothing is random.

Both give spans, a DataFrame: a row for each, in the order in which they were planned, with its `lane`, what is done
(`what`), the number of the step or kernel (`number`), `start` and `end`, all in the unit of the times that are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

PLAN, WAIT, READ, RUN = "plan", "wait", "read", "run"  # of steps: by the host, and by the device
LAUNCH, ASK, WORK, TAIL = "launch", "ask", "work", "tail"  # of kernels, which `WAIT` as well
AT_END, AFTER_WAIT, AT_START = MOMENTS = ("at its end", "after its wait", "at its start")
COLUMNS = ["lane", "what", "number", "start", "end"]


def simulate_steps(plans: Sequence[float], read: float, devices: Sequence[float], steps_ahead: int) -> pd.DataFrame:
    """The spans of a run. plans, devices: a time for each step.

    The host plans and launches a step, and then reads all steps but the newest `steps_ahead`. The device runs one step
    at a time, as soon as it is launched and the one before it has ended.
    """
    spans: list[tuple[str, str, int, float, float]] = []
    now, free, done = 0.0, 0.0, list[float]()
    unread = 0
    for step, (plan, device) in enumerate(zip(plans, devices, strict=True)):
        spans.append(("host", PLAN, step, now, now + plan))
        now += plan
        free = max(now, free) + device
        spans.append(("device", RUN, step, free - device, free))
        done.append(free)
        behind = steps_ahead if step + 1 < len(plans) else 0  # at the end nothing is left in flight
        while unread <= step - behind:
            spans.append(("host", WAIT, unread, now, max(now, done[unread])))
            now = max(now, done[unread]) + read
            spans.append(("host", READ, unread, now - read, now))
            unread += 1
    return _spans(spans)


class Kernel(NamedTuple):
    """ask: until what does not come from the kernel before has come. work: from then on, or from that one's end, until
    the first programs have ended. tail: until the last have."""

    name: str
    ask: float
    work: float
    tail: float


def simulate_kernels(kernels: Sequence[Kernel], launch: float, lets_next: str) -> pd.DataFrame:
    """The spans of these kernels, each in the lane of its name.

    launch: from the moment at which a kernel may be launched until its first program runs. lets_next: when a kernel
    lets the next one be launched, one of `MOMENTS`. `AT_END` is the usual order, in which nothing overlaps. The
    processors are taken to have room for the first programs beside those of the kernel before.
    """
    spans: list[tuple[str, str, int, float, float]] = []
    may_launch = ended = 0.0
    for number, kernel in enumerate(kernels):
        begins = may_launch + launch
        works = max(begins + kernel.ask, ended)
        ended = works + kernel.work + kernel.tail
        moments = (may_launch, begins, begins + kernel.ask, works, works + kernel.work, ended)
        stages = zip((LAUNCH, ASK, WAIT, WORK, TAIL), pairwise(moments), strict=True)
        spans += [(kernel.name, what, number, *times) for what, times in stages]
        may_launch = {AT_END: ended, AFTER_WAIT: works, AT_START: begins}[lets_next]
    return _spans(spans)


def in_gaps(spans: pd.DataFrame) -> float:
    """The time in which no kernel works between two that do, or in which the device runs no step."""
    works = spans[spans.what.isin((WORK, TAIL, RUN))]
    gaps = works.start - works.end.cummax().shift()
    return float(gaps.clip(lower=0).sum())


def most_unfinished(spans: pd.DataFrame) -> int:
    """The most kernels that have not ended when the first program of a later one begins."""
    ends = spans.groupby("number").end.max()
    begins = spans[spans.what.isin((ASK, RUN))].set_index("number").start
    return max(int((ends.loc[: number - 1] > begin).sum()) for number, begin in begins.items())


def _spans(spans: Sequence[tuple[str, str, int, float, float]]) -> pd.DataFrame:
    """Those that take some time, or are no waits."""
    return pd.DataFrame([one for one in spans if one[4] > one[3] or one[1] != WAIT], columns=COLUMNS)
