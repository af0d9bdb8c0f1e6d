"""What the exercise of lesson 067 ends as: the engine's own pipeline waits on a CPU, where nothing is to be gained."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import torch

from ...config import EngineConfig
from ...decode.inputs import Batch
from ...decode.step import DecodeStep
from ...kv.blocks import KVBlockManager
from ...kv.guards import bookkeeping
from ..checking.events import events_for


class Slot:
    """Memory of the host for the tokens of one step, and an event that says when they are there."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.memory = torch.empty(max_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        self.event = events_for(device)()
        self.size = 0

    def put(self, tokens: torch.Tensor) -> None:
        """Let the device copy int64 [B] here when it has come so far; the host goes on."""
        self.size = len(tokens)
        self.memory[: self.size].copy_(tokens, non_blocking=True)
        self.event.record()  # behind the copy

    def read(self) -> list[int]:
        """The tokens; waits for them, and for nothing that comes after them."""
        self.event.synchronize()
        return self.memory[: self.size].tolist()


class Pipeline:
    """The host launches step t + 1, and then reads what step t has made."""

    steps_ahead = 1

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.in_flight: deque[Batch] = deque()
        self.empty = deque(Slot(config.max_batch_size, kv.device) for _ in range(self.steps_ahead + 1))

    def launch(self, batch: Batch) -> None:
        """Start a step."""
        outcome = self.step.run(batch)
        self.empty[0].put(outcome.tokens)
        batch.pending = self.empty.popleft()
        self.in_flight.append(batch)

    def land(self) -> tuple[Batch, list[int]]:
        """Wait for the oldest batch in flight: it, and the token of each of its rows."""
        oldest = self.in_flight[0]
        token_ids = bookkeeping.interruptible(oldest.pending.read)  # whatever stops it has changed nothing
        self.in_flight.popleft()
        self.empty.append(oldest.pending)
        if not self.in_flight:
            self.step.has_read(oldest, token_ids)
        return oldest, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. Waits until the device has made them."""
        while self.in_flight:
            with suppress(Exception):  # whatever has become of the device
                self.in_flight[0].pending.read()
            self.empty.append(self.in_flight.popleft().pending)
        self.step.rows.forget()
