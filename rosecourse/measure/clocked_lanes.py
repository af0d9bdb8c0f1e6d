"""Lanes of host and device, as `pipeline_simulation` has them, from the moments that a real run has noted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .pipeline_simulation import PLAN, READ, RUN, WAIT, Lanes, Span


@dataclass(frozen=True)
class NotedRun:
    """Moments in seconds of `time.perf_counter`.

    starts: of each call of the host, and the end of the last. launched: of each step. waits: from when to when the host
    waited for each step. ran: from when to when the device was at it. steps_ahead: of the pipeline.
    """

    starts: Sequence[float]
    launched: Sequence[float]
    waits: Sequence[tuple[float, float]]
    ran: Sequence[tuple[float, float]]
    steps_ahead: int

    @property
    def lanes(self) -> Lanes:
        """In ms from the first start. A call plans until the launch, waits, and reads until the next wait or call."""
        ms = self._ms
        host = [
            Span(PLAN, step, ms(begin), ms(end))
            for step, (begin, end) in enumerate(zip(self.starts, self.launched, strict=False))
        ]
        next_waits = [begin for begin, _ in self.waits[1:]] + [self.starts[-1]]
        for step, ((begin, end), following) in enumerate(zip(self.waits, next_waits, strict=True)):
            call = min(step + self.steps_ahead, len(self.starts) - 2)
            host.append(Span(WAIT, step, ms(begin), ms(end)))
            host.append(Span(READ, step, ms(end), ms(min(self.starts[call + 1], following))))
        device = [Span(RUN, step, ms(begin), ms(end)) for step, (begin, end) in enumerate(self.ran)]
        return Lanes(tuple(sorted(host, key=lambda span: span.start)), tuple(device))

    def _ms(self, moment: float) -> float:
        return 1e3 * (moment - self.starts[0])


def some_steps(lanes: Lanes, first: int, last: int) -> Lanes:
    """What happens from the plan of one step to the read of another, in the time since that plan began."""
    zero = next(span.start for span in lanes.host if (span.what, span.step) == (PLAN, first))
    end = next(span.end for span in lanes.host if (span.what, span.step) == (READ, last))

    def part(spans: Sequence[Span]) -> tuple[Span, ...]:
        inside = [span for span in spans if span.end > zero and span.start < end]
        return tuple(one._replace(start=max(0, one.start - zero), end=min(end, one.end) - zero) for one in inside)

    return Lanes(part(lanes.host), part(lanes.device), lanes.unit)
