"""A race where time says nothing: how many weights and biases a step's kernels ask for only after their waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...checks import require
from ...config import EngineConfig
from ...decode import DecodeParts
from ...kernels import INTERPRETED
from ...models.shape import Model
from ..world.learner import Learner
from ..world.ops_guard import METHODS, GuardedOps
from ..world.order_oracle import OrderedOps
from ..world.written_memory import Written
from .count_race import CountRace
from .counted_step import take_steps

WHAT = (
    "in a decode step, the launches of kernels around attention, and how often one of them asks for weights or for a "
    "bias only after its wait. What is asked for before it is on its way while the kernel before is still at work"
)
NOT_INTERPRETED = (
    "what a kernel asks for is seen in Triton's interpreter alone: set TRITON_INTERPRET=1 in the environment before "
    "rosecourse is imported"
)


@dataclass(frozen=True)
class Asks:
    """Of one step. kernels: that are launched. late: weights and biases that one of them asks for after its wait."""

    kernels: int
    late: int


class OrderRace(CountRace):
    """Counts are `Asks`."""

    what = WHAT
    axis = "weights and biases asked for after a wait, in a step"
    title = "Lesson {number}: what a kernel asks for too late"

    def row(self, counted: Asks) -> dict[str, float]:
        return {"kernels": counted.kernels, "asked for after a wait": counted.late}

    def figure(self, counted: Asks) -> float:
        return counted.late

    def claim(self) -> str:
        before, yours, course = (
            f"{figure} of the weights and biases of {one.kernels} kernels"
            for figure, one in zip(self.figures, self.counts.values(), strict=True)
        )
        return f"Asked for after a wait, before: {before}; by your part: {yours}; by the course's: {course}."

    def not_timed(self) -> str:
        return f"Nothing is timed: {self.untimed}."


class Log:
    """Of the operations of an engine."""

    def __init__(self) -> None:
        self.ops: OrderedOps | None = None

    def begin(self) -> None:
        """A step begins."""
        if self.ops is not None:
            self.ops.begin()


def asks_of(parts: DecodeParts, model: Model) -> Asks:
    """What the kernels among these parts' operations ask for in a greedy step of an engine, once it runs."""
    require(INTERPRETED, NOT_INTERPRETED)
    log = Log()

    part: Any = parts.ops

    def watched(model: Any, config: EngineConfig) -> OrderedOps:
        log.ops = OrderedOps(GuardedOps(Learner(part, METHODS), model, config), Written())
        return log.ops

    take_steps(parts.with_(ops=watched), model, log)
    assert log.ops is not None
    return Asks(len(log.ops.launched), len(log.ops.seen().late))
