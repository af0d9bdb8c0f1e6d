"""A pipeline of decode steps, simulated: when the host plans, waits and reads, and when the device runs.

The host plans and launches a step, and then reads all steps but the newest `steps_ahead`. The device runs one step at a
time, each as soon as it is launched and the one before it has ended. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high
from typing import NamedTuple

from ..checks import is_count, is_within, require, shown

PLAN, WAIT, READ, RUN = "plan", "wait", "read", "run"
LONGEST = 1e9  # of a time that is given

Times = float | Sequence[float]  # of every step, or one of each


class Span(NamedTuple):
    """What the host or the device does with a step: PLAN, WAIT or READ, or RUN. Times are in the unit of `Lanes`."""

    what: str
    step: int
    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Lanes:
    """What host and device do, each in the order of time. unit: of all times, such as `ms`."""

    host: tuple[Span, ...]
    device: tuple[Span, ...]
    unit: str = "ms"

    @property
    def end(self) -> float:
        """When the last token has been read."""
        return max(span.end for span in (*self.host, *self.device))

    @property
    def step_time(self) -> float:
        """From the end of one step of the device to that of the next: the upper median, as in the middle of a run."""
        ends = {span.step: span.end for span in self.device}.values()  # a step may run in pieces
        return median_high([end - before for before, end in pairwise(ends)] or [self.device[0].duration])

    def typical(self, what: str) -> float:
        """The median duration of the spans of a kind: PLAN, WAIT, READ or RUN."""
        return median(span.duration for span in (*self.host, *self.device) if span.what == what)

    @property
    def idle(self) -> tuple[tuple[float, float], ...]:
        """Start and end of each time between two steps in which the device has nothing to do."""
        return tuple((one.end, other.start) for one, other in pairwise(self.device) if other.start > one.end)

    @property
    def busy_share(self) -> float:
        """The share in which the device runs, over whole periods as in `step_time`: each is a pause and a step.

        They lie between the end of the first step and that of the last one; for a single step the share is 1.
        """
        first = max(span.end for span in self.device if span.step == self.device[0].step)
        whole = self.device[-1].end - first
        return 1 - sum(end - start for start, end in self.idle if start >= first) / whole if whole else 1.0

    @property
    def launched_before_read(self) -> tuple[int, ...]:
        """For each step, how many later ones had been launched when the host read its tokens."""
        counts, launched = {}, 0
        for span in self.host:
            launched += span.what == PLAN
            if span.what == READ:
                counts[span.step] = launched - span.step - 1
        return tuple(counts[step] for step in sorted(counts))


def simulate(num_steps: int, *, plan: Times, read: Times, device: Times, steps_ahead: int, unit: str = "ms") -> Lanes:
    """The lanes of a run.

    plan: of the host, from the moment at which it may go on until the step is launched. read: of the host, once the
    tokens are there: append them, hand them out. device: of the device, for the step. Raises `ConfigError`.
    """
    require(is_count(num_steps), f"num_steps is {shown(num_steps)}: give 1 or more")
    require(is_count(steps_ahead, 0), f"steps_ahead is {shown(steps_ahead)}: give 0 or more")
    plans, reads, runs = (
        _of_each(name, times, num_steps) for name, times in (("plan", plan), ("read", read), ("device", device))
    )
    host: list[Span] = []
    ran: list[Span] = []
    now, num_read = 0.0, 0
    for step in range(num_steps):
        host.append(Span(PLAN, step, now, now + plans[step]))
        now = host[-1].end
        start = max(now, ran[-1].end if ran else now)
        ran.append(Span(RUN, step, start, start + runs[step]))
        behind = steps_ahead if step + 1 < num_steps else 0  # at the end nothing is left in flight
        while num_read <= step - behind:
            made = ran[num_read].end
            if made > now:
                host.append(Span(WAIT, num_read, now, made))
                now = made
            host.append(Span(READ, num_read, now, now + reads[num_read]))
            now, num_read = host[-1].end, num_read + 1
    return Lanes(tuple(host), tuple(ran), unit)


def _of_each(name: str, times: Times, num_steps: int) -> list[float]:
    """A time for each step."""
    given = list(times) if isinstance(times, Sequence) and not isinstance(times, str) else [times] * num_steps
    require(len(given) == num_steps, f"{name} has {len(given)} times for {num_steps} steps: give one, or one of each")
    for time in given:
        require(is_within(time, 0, LONGEST), f"{name} is {shown(time)}: give a time from 0 to {LONGEST:g}")
    return [float(time) for time in given]
