"""A race where time says nothing: how often the operations around attention move data in a decode step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...config import EngineConfig, SamplingParams
from ...decode import DecodeParts
from ...engine.engine import InferenceEngine
from ...models.ops import Ops
from ...models.shape import Model
from ..world.ops_log import LoggedOps, OpsLog
from .count_race import CountRace

SESSIONS = 3  # of the step that is counted
WHAT = (
    "operations that move data around the attention of a decode step, in which `add_norm` is one, as it is one kernel "
    "on a GPU. Views move nothing"
)


@dataclass(frozen=True)
class Moves:
    """Of one step. before, behind: in `embed`, and in `logits`. layers: in all layers; layer: in one of them."""

    before: int
    layer: float
    layers: int
    behind: int

    @property
    def total(self) -> int:
        return self.before + self.layers + self.behind


class OperationRace(CountRace):
    """Counts are `Moves`."""

    what = WHAT
    axis = "operations in a step"
    title = "Lesson {number}: what moves data around attention"

    def row(self, counted: Moves) -> dict[str, float]:
        return {
            "embedding": counted.before,
            "in a layer": counted.layer,
            "logits": counted.behind,
            "in a step": counted.total,
        }

    def figure(self, counted: Moves) -> float:
        return counted.total

    def claim(self) -> str:
        before, yours, course = (
            f"{figure} operations in a step, {one.layer:g} in a layer"
            for figure, one in zip(self.figures, self.counts.values(), strict=True)
        )
        return f"Before: {before}; your part: {yours}; the course's: {course}."


def operations_of(parts: DecodeParts, model: Model) -> Moves:
    """What the operations among these parts do in a step of an engine, once it runs."""
    log = OpsLog()

    def logged(model: Any, config: EngineConfig) -> Ops:
        return LoggedOps(parts.ops(model, config), log)

    config = EngineConfig(max_batch_size=4, max_seq_len=64, prefix_cache=False)
    engine = InferenceEngine(model, config, parts.with_(ops=logged))
    params = SamplingParams(max_new_tokens=12, stop_on_eos=False)
    sessions = [engine.new_session([3 * n + 1] * (n + 4), params) for n in range(SESSIONS)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for _ in range(3):
        log.begin()
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    around = log.operations["embed"], log.operations["logits"]
    layers = log.operations.total() - sum(around)
    return Moves(around[0], layers / model.shape.num_layers, layers, around[1])
