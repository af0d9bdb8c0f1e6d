"""Part `pipeline`: when the host reads what a step has made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from ..config import EngineConfig
from ..kernels import to_host_on
from ..kv.blocks import KVBlockManager
from ..kv.bookkeeping import bookkeeping
from ..request.session import InferenceSession
from .in_flight import StepInFlight, TokenRing
from .ranges import range_for
from .step import DecodeStep


class Pipeline:
    """The host is one step behind: it launches step t + 1, and reads what step t has made while the device goes on.

    That works because the device has each chosen token in its row (lesson 064), and step t + 1 reads it there. A CPU
    runs each operation inside the call, so there is nothing to wait for and nothing to run ahead of. (vLLM's
    asynchronous scheduling and SGLang's overlap scheduler are one step behind, too; the idea is NanoFlow's.) The first
    tokens of requests are in flight as a step's are.
    """

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.range = range_for(kv.device, config.nvtx)
        self.steps_ahead = self.ahead_on(kv.device)
        self.ring = TokenRing(self.steps_ahead + 1, config.max_batch_size, kv.device, to_host_on(kv.device))
        self.in_flight: deque[StepInFlight] = deque()
        self.last_run: StepInFlight | None = None

    def ahead_on(self, device: torch.device) -> int:
        """How many steps may be in flight on a device when the host goes on to plan another one."""
        return 1 if device.type == "cuda" else 0

    def launch(self, sessions: Sequence[InferenceSession], user: Any) -> None:
        """Start a step of these sessions. Raises `RosecourseError` where as many are in flight as can be."""
        self.ring.require_slot()
        newest = self.in_flight[-1] if self.in_flight else None
        goes_on = newest is not None and newest is self.last_run and newest.sessions == sessions
        outcome = self.step.run(sessions, newest.tables) if newest and goes_on else self.step.run(sessions)
        self.last_run = self.put(sessions, user, outcome.tokens)

    def put(self, sessions: Sequence[InferenceSession], user: Any, tokens: torch.Tensor) -> StepInFlight:
        """Tokens int64 [B] that the device is making, of a step or of a prefill: they land in their turn.

        Raises `RosecourseError` where as many steps are in flight as can be.
        """
        made = StepInFlight(sessions, user, self.ring.put(tokens))
        self.in_flight.append(made)
        return made

    def land(self) -> tuple[StepInFlight, list[int]]:
        """Wait for the oldest step: it, and the token of each of its rows or NO_TOKEN."""
        landed = self.in_flight[0]
        with self.range("rosecourse.read"):
            token_ids = bookkeeping.interruptible(landed.made.read)
        self.in_flight.popleft()
        self.ring.give_back(landed.made)
        if landed is self.last_run:
            self.last_run = None
            self.step.has_read(landed.sessions, token_ids)
        return landed, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. Waits until the device has made them."""
        while self.in_flight:
            with suppress(Exception):  # whatever has become of the device, nothing is in flight afterwards
                self.in_flight[0].made.read()
            self.ring.give_back(self.in_flight.popleft().made)
        self.step.rows.forget()
