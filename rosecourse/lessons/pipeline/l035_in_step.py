"""The pipeline of lessons 035 to 066: there is none. The host waits for each step's tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from ...config import EngineConfig
from ...decode.in_flight import StepInFlight
from ...decode.parts import Step
from ...decode.ranges import range_for
from ...decode.sampling import tokens_of_each
from ...kv.layout import CacheLayout
from ...request.session import InferenceSession


class Pipeline:
    """The host launches a step and waits for it; then it launches the next one, while the device waits."""

    steps_ahead = 0

    def __init__(self, step: Step, kv: CacheLayout, config: EngineConfig) -> None:
        self.step = step
        self.range = range_for(kv.device, config.nvtx)
        self.in_flight: deque[StepInFlight] = deque()

    def launch(self, sessions: Sequence[InferenceSession], user: Any) -> None:
        """Start a step of these sessions."""
        logits = self.step(sessions)
        self.in_flight.append(StepInFlight(sessions, user, logits))

    def land(self) -> tuple[StepInFlight, list[int]]:
        """Wait for the oldest step: it, and the token of each of its rows or NO_TOKEN."""
        landed = self.in_flight[0]
        with self.range("rosecourse.read"):
            token_ids = tokens_of_each(self.step, landed.sessions, landed.made)
        self.in_flight.popleft()
        return landed, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight."""
        self.in_flight.clear()
