"""Kernels in a row, simulated: each reads what the one before has written, and may be started before that has ended.

A kernel is launched; its first programs ask for what they need from elsewhere, such as weights; they wait until the
kernel before has ended; they work; and its last programs take a while longer than its first ones. It is assumed that
the processors have room for its first programs beside those of the kernel before. Nothing is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ..checks import is_within, require, shown

LAUNCH, ASK, WAIT, WORK, TAIL = "launch", "ask", "wait", "work", "tail"
RUN = "run"  # all of that together, of a recorded kernel
AT_END, AFTER_WAIT, AT_START = "at its end", "after its wait", "at its start"
MOMENTS = (AT_END, AFTER_WAIT, AT_START)  # at which a kernel lets the next one be launched
LONGEST = 1e9  # of a time that is given


class Kernel(NamedTuple):
    """ask: until what does not come from the kernel before has come. work: from then on, or from that one's end, until
    the first programs have ended. tail: until the last have."""

    name: str
    ask: float
    work: float
    tail: float


class Span(NamedTuple):
    """What the kernel of a number does: LAUNCH, ASK, WAIT, WORK or TAIL; or RUN. Times are in the unit of `Row`."""

    what: str
    kernel: int
    start: float
    end: float

    @property
    def duration(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Row:
    """What became of kernels in a row. spans: in the order of the kernels, and in each in the order of time."""

    names: tuple[str, ...]
    spans: tuple[Span, ...]
    unit: str = "µs"

    @property
    def end(self) -> float:
        """When the last kernel has ended."""
        return max(span.end for span in self.spans)

    @property
    def ends(self) -> tuple[float, ...]:
        """When each kernel has ended."""
        return tuple(span.end for span in self.spans if span.what in (TAIL, RUN))

    @property
    def gaps(self) -> tuple[tuple[float, float], ...]:
        """Start and end of each time between two kernels in which none works, or runs."""
        begins = [span.start for span in self.spans if span.what in (WORK, RUN)]
        return tuple((end, begin) for end, begin in zip(self.ends, begins[1:], strict=False) if begin > end)

    @property
    def in_gaps(self) -> float:
        """The time of all gaps."""
        return sum((end - start for start, end in self.gaps), 0.0)

    @property
    def unfinished(self) -> tuple[int, ...]:
        """For each kernel, how many before it had not ended when its first program began."""
        begins = [span.start for span in self.spans if span.what in (ASK, RUN)]
        return tuple(sum(end > begin for end in self.ends[:number]) for number, begin in enumerate(begins))


def simulate(kernels: Sequence[Kernel], *, launch: float, lets_next: str, unit: str = "µs") -> Row:
    """The row of these kernels.

    launch: from the moment at which a kernel may be launched until its first program runs. lets_next: when a kernel
    lets the next one be launched, one of `MOMENTS`. AT_END is the usual order, in which nothing overlaps. Raises
    `ConfigError`.
    """
    require(len(kernels) > 0, "there are no kernels: give one or more")
    require(lets_next in MOMENTS, f"lets_next is {shown(lets_next)}: give one of {', '.join(MOMENTS)}")
    for name, time in _times(kernels, launch):
        require(is_within(time, 0, LONGEST), f"{name} is {shown(time)}: give a time from 0 to {LONGEST:g}")
    spans: list[Span] = []
    may_launch = ended = 0.0
    for number, kernel in enumerate(kernels):
        begins = may_launch + launch
        asked = begins + kernel.ask
        works = max(asked, ended)
        first_ended = works + kernel.work
        ended = first_ended + kernel.tail
        moments = (may_launch, begins, asked, works, first_ended, ended)
        stages = zip((LAUNCH, ASK, WAIT, WORK, TAIL), pairwise(moments), strict=True)
        spans += [Span(what, number, *times) for what, times in stages]
        may_launch = {AT_END: ended, AFTER_WAIT: works, AT_START: begins}[lets_next]
    return Row(tuple(kernel.name for kernel in kernels), tuple(spans), unit)


def _times(kernels: Sequence[Kernel], launch: float) -> list[tuple[str, float]]:
    """Every time that is given, with what it is."""
    of_kernels = [
        (f"{what} of {kernel.name}", time)
        for kernel in kernels
        for what, time in zip((ASK, WORK, TAIL), kernel[1:], strict=True)
    ]
    return [("launch", launch), *of_kernels]
