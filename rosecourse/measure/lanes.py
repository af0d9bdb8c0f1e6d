"""Spans of a simulated pipeline of decode steps (lesson 068), and of recorded kernels (lesson 071).

Both give spans, a DataFrame: a row for each, with its `lane`, what is done
(`what`), the number of the step or kernel (`number`), `start` and `end`, all in the unit of the times that are given.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .kernels import ATTEND, NARROW, PROJECT, QKV, WIDEN
from .timeline import Timeline

PLAN, WAIT, READ, RUN = "plan", "wait", "read", "run"  # by the host, and by the device
IN_TURN = (ATTEND, PROJECT, WIDEN, NARROW, QKV)  # the kernels from one attention to the next
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


def layer_spans(step: Timeline, layers: int) -> pd.DataFrame:
    """So many layers from the middle of a step with five kernels each, as `replayed_step` gives it, from 0 on.

    A kernel that starts before the end of the one before it waits until then: from there on it runs.
    """
    kernels = step.kernels
    begins = kernels.index[kernels.kind == "attention"]
    begin = begins[(len(begins) - layers) // 2]
    shown = kernels[begin : begin + len(IN_TURN) * layers]
    starts, ends = shown.start_us - shown.start_us.iloc[0], shown.end_us - shown.start_us.iloc[0]
    times = pd.DataFrame({"start": starts, "free": ends - shown.own_us, "end": ends}).round(3)
    spans: list[tuple[str, str, int, float, float]] = []
    for number, (start, free, end) in enumerate(times.to_numpy().tolist()):
        lane = IN_TURN[number % len(IN_TURN)]
        spans += [(lane, WAIT, number, start, free), (lane, RUN, number, free, end)]
    return _spans(spans)


def _spans(spans: Sequence[tuple[str, str, int, float, float]]) -> pd.DataFrame:
    """Those that take some time, or are no waits."""
    return pd.DataFrame([one for one in spans if one[4] > one[3] or one[1] != WAIT], columns=COLUMNS)
