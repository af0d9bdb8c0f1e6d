"""What the exercise of lesson 067 begins as: the device has the next token already, and the host waits all the same."""

from __future__ import annotations

from collections import deque

from ...config import EngineConfig
from ...decode.inputs import Batch
from ...decode.step import DecodeStep
from ...kv.blocks import KVBlockManager


class Pipeline:
    """The host waits for each step before it launches the next one, as in lesson 066."""

    steps_ahead = 0

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.in_flight: deque[Batch] = deque()

    def launch(self, batch: Batch) -> None:
        """Start a step."""
        outcome = self.step.run(batch)
        token_ids = outcome.tokens.tolist()  # waits for the device
        batch.pending = token_ids
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """The oldest batch in flight, and the token of each of its rows."""
        landed = self.in_flight.popleft()
        self.step.has_read(landed, landed.pending)
        return landed, landed.pending

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight."""
        self.in_flight.clear()
        self.step.rows.forget()
