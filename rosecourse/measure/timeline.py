"""Timelines: what host and device did in one decode step, as a table of events. `profiling` takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import pandas as pd

from ..checks import require

STEP = "rosecourse.step"  # the range around a whole step: the launch of one, and the landing of one

PARTS = {
    "roseinfer.decode_step_sessions.place": "place",  # and what is copied then
    "roseinfer.decode_step_sessions.build_block_tables": "block_tables",
    "roseinfer.decode_step_sessions.plan": "plan",
    "roseinfer.model.forward": "forward",
    "roseinfer.kv.append_token": "kv_append",
    "roseinfer.decode_step_sessions.run": "runner",
    "rosecourse.read": "read",  # the wait for tokens, and their way to the host
}
STEP_KINDS = {"inside": "inside a block", "boundary": "at a block boundary", "fork": "right after a fork"}

HOST = "host"  # the kind of a range of the host; all others are kinds of what the device does
KIND_LABELS = {
    "attention": "attention",
    "append": "KV append",
    "matrix": "matrix products",
    "copy": "copies, host and device",
    "other": "other",
}


@dataclass(frozen=True)
class Timeline:
    """One decode step as the profiler saw it.

    events: a row for each, in the order of their starts: `name`, `kind` (`HOST` or one of `KIND_LABELS`), and in
    microseconds from the start of the step `start_us` and `us`. The first is the whole step. A range of the host ends
    when its kernels have been launched; they may run later, beside another range. device: its name. plain_us: the
    median of such steps before the profiler started. step_kind: one of `STEP_KINDS`. context: the most positions that a
    session had in the cache before the step.
    """

    events: pd.DataFrame
    device: str
    plain_us: float
    step_kind: str = "inside"
    context: int = 0

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """The events of the host, each with its `part`, one of `PARTS` or NaN."""
        return self.events[self.events.kind == HOST].assign(part=self.events["name"].map(PARTS))

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """The events of the device, with their ends (`end_us`), and their time from the end of all before (`own_us`).

        One that starts before that end (lesson 071) mostly waits until then. So all times of their own add up to the
        time in which the device was busy, with what the last one does after the step.
        """
        kernels = self.events[self.events.kind != HOST].reset_index(drop=True)
        end = kernels.start_us + kernels.us
        free = end.cummax().shift(fill_value=0.0)
        return kernels.assign(end_us=end, own_us=(end - kernels.start_us.clip(lower=free)).clip(lower=0.0))

    @property
    def step_us(self) -> float:
        return float(self.events.us.iloc[0])

    @property
    def busy_us(self) -> float:
        """Microseconds of the step in which the device was busy; kernels that run side by side count once."""
        ends, own = self.kernels.end_us, self.kernels.own_us
        return float((own - (ends - self.step_us).clip(lower=0)).clip(lower=0).sum())

    @property
    def busy_share(self) -> float:
        """The share of the step in which the device was busy."""
        return self.busy_us / self.step_us

    def part_us(self, part: str) -> float:
        """Microseconds that the host spent in a part of `PARTS`, or, for `rest`, in none of them."""
        times = self.ranges.groupby("part").us.sum()
        return float(times.get(part, 0.0)) if part != "rest" else self.step_us - float(times.sum())


def replayed_step(timeline: Timeline, layers: int) -> Timeline:
    """A whole replayed step of so many layers (lesson 067 on), from its first kernel to that of the next step.

    timeline: a profiler's window, which begins and ends somewhere in a replay, so that some layers are cut off. Each of
    these is taken to be like the one whose time is the median. `step_us` is then the time from one step to the next
    under the profiler. Raises `ConfigError` for a window that lacks the border of two steps or a whole layer.
    """
    kernels = timeline.kernels
    begins = kernels.index[kernels.kind == "attention"]
    groups = [kernels.iloc[begin : end + 1] for begin, end in pairwise(begins)]  # each with the next attention
    takes_tokens = kernels.kind.eq("copy") | kernels.name.str.startswith("_to_host")
    borders = [one for one in groups if takes_tokens[one.index].any()]
    whole = sorted((one for one in groups if not takes_tokens[one.index].any()), key=_length)
    require(len(borders) == 1, "no border of two steps in this window: give a recorded step that was replayed")
    require(len(whole) > 0, "no whole layer in this window: give one with two kernels of attention in a row")
    border, typical = borders[0], whole[(len(whole) - 1) // 2]
    first = border.index.get_loc(takes_tokens[border.index][::-1].idxmax()) + 1
    seen = [one for one in groups if one is not border][: layers - 1]
    parts = [border[first:], *seen, *[typical] * (layers - 1 - len(seen)), border[: first + 1]]
    starts = pd.Series([0.0, *map(_length, parts)]).cumsum()
    moved = [
        one[:-1].assign(start_us=one.start_us - one.start_us.iloc[0] + start)
        for one, start in zip(parts, starts, strict=False)
    ]
    step = pd.DataFrame([{"name": STEP, "kind": HOST, "start_us": 0.0, "us": starts.iloc[-1]}])
    return replace(timeline, events=pd.concat([step, *moved], ignore_index=True)[list(step)])


def _length(kernels: pd.DataFrame) -> float:
    """From the start of the first to that of the last."""
    return float(kernels.start_us.iloc[-1] - kernels.start_us.iloc[0])
