"""What the exercise of lesson 067 begins as: the device has the next token already, and the host waits all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ...config import EngineConfig
from ...decode.in_flight import StepInFlight
from ...decode.step import DecodeStep
from ...kv.blocks import KVBlockManager
from ...request.session import InferenceSession


class Pipeline:
    """The host waits for each step before it launches the next one, as in lesson 066."""

    steps_ahead = 0

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.in_flight: deque[StepInFlight] = deque()

    def launch(self, sessions: Sequence[InferenceSession], user: Any) -> None:
        """Start a step of these sessions, for a user."""
        outcome = self.step.run(sessions)
        token_ids = outcome.tokens.tolist()  # waits for the device
        self.in_flight.append(StepInFlight(sessions, user, token_ids))

    def land(self) -> tuple[StepInFlight, list[int]]:
        """The oldest step in flight, and the token of each of its rows."""
        landed = self.in_flight.popleft()
        self.step.has_read(landed.sessions, landed.made)
        return landed, landed.made

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight."""
        self.in_flight.clear()
        self.step.rows.forget()
