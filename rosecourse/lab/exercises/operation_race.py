"""A race where time says nothing: how often the operations around attention move data in a decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig
from ...decode import DecodeParts
from ...models.ops import Ops
from ...models.shape import Model
from ..world.ops_log import LoggedOps, OpsLog
from .count_race import CountRace
from .counted_step import take_steps

WHAT = (
    "operations that move data around the attention of a decode step, in which `add_norm` is one, as it is one kernel "
    "on a GPU. Views move nothing"
)

WITH_KERNELS = (
    "what a GPU would have to start around the attention of a decode step: operations that move data, and launches of "
    "kernels, each of which is one. Views move nothing"
)


@dataclass(frozen=True)
class Moves:
    """Of one step. embed, logits: in these two operations. layers: in all layers; layer: in one of them."""

    embed: int
    layer: float
    layers: int
    logits: int

    @property
    def total(self) -> int:
        return self.embed + self.layers + self.logits


class OperationRace(CountRace):
    """Counts are `Moves`."""

    what = WHAT
    axis = "operations in a step"
    title = "Lesson {number}: what moves data around attention"

    def row(self, counted: Moves) -> dict[str, float]:
        return {
            "embedding": counted.embed,
            "in a layer": counted.layer,
            "logits": counted.logits,
            "in a step": counted.total,
        }

    def figure(self, counted: Moves) -> float:
        return counted.total

    def claim(self) -> str:
        before, yours, course = (
            f"{figure} {self.axis}, {one.layer:g} in a layer"
            for figure, one in zip(self.figures, self.counts.values(), strict=True)
        )
        return f"Before: {before}; your part: {yours}; the course's: {course}."


class KernelRace(OperationRace):
    """The same for parts that have kernels of their own."""

    what = WITH_KERNELS
    axis = "operations and launches in a step"


def operations_of(parts: DecodeParts, model: Model) -> Moves:
    """What the operations among these parts do in a step of an engine, once it runs."""
    log = OpsLog()

    def logged(model: Any, config: EngineConfig) -> Ops:
        return LoggedOps(parts.ops(model, config), log)

    take_steps(parts.with_(ops=logged), model, log)
    embed, logits = log.operations["embed"], log.operations["logits"]
    layers = log.operations.total() - embed - logits
    return Moves(embed, layers / model.shape.num_layers, layers, logits)
