"""First tokens in flight: a prefill's tokens land as a step's do."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import torch
from torch import Tensor

from ..config import EngineConfig
from ..decode.inputs import Batch
from ..decode.pipeline import FULL, TokenRing
from ..decode.sampling import next_tokens, sampling_metadata
from ..decode.step import DecodeStep, range_for
from ..errors import RosecourseError
from ..kv.blocks import KVBlockManager
from ..kv.guards import bookkeeping


class Pipeline:
    """The host is one step behind: it launches step t + 1, and reads what step t has made while the device goes on.

    That works because the device has each chosen token in its row (lesson 064), and step t + 1 reads it there. A CPU
    runs each operation inside the call, so there is nothing to run ahead of. (vLLM's asynchronous scheduling and
    SGLang's overlap scheduler are one step behind, too; the idea is NanoFlow's.) The first tokens of requests are in
    flight as a step's are.

    steps_ahead: how many batches may be in flight when the host plans another one. in_flight: the oldest first.
    """

    def __init__(self, step: DecodeStep, kv: KVBlockManager, config: EngineConfig) -> None:
        self.step = step
        self.range = range_for(kv.device, config.nvtx)
        self.steps_ahead = self.ahead_on(kv.device)
        self.ring = TokenRing(self.steps_ahead + 1, config.max_batch_size, kv.device)
        self.in_flight: deque[Batch] = deque()

    def ahead_on(self, device: torch.device) -> int:
        return 1 if device.type == "cuda" else 0

    def launch(self, batch: Batch) -> None:
        """Start a step. Raises `RosecourseError` where as many are in flight as can be."""
        if not self.ring.empty:
            raise RosecourseError(FULL)
        batch.pending = self.ring.put(self.step.run(batch).tokens)
        self.in_flight.append(batch)

    def begin(self, batch: Batch, logits: Tensor) -> None:
        """The first tokens, by the logits [B, vocab_size] of a prefill, stay on the device, where the next step takes
        them, and land in their turn. Raises as `launch`."""
        tokens = next_tokens(logits, sampling_metadata(batch.sessions, logits.device), self.step.best)
        batch.pending = self.ring.put(tokens)
        self.in_flight.append(batch)
        self.step.rows.add_first_tokens(batch.tables, tokens)

    def land(self) -> tuple[Batch, list[int]]:
        """Wait for the oldest batch: it, and the token of each row or NO_TOKEN. An interrupt changes nothing."""
        batch = self.in_flight[0]
        with self.range("rosecourse.read"):
            token_ids = bookkeeping.interruptible(batch.pending.read)
        self.in_flight.popleft()
        self.ring.give_back(batch.pending)
        self.step.has_read(batch, token_ids)
        return batch, token_ids

    def abandon(self) -> None:
        """Nobody wants the tokens of the steps in flight. Waits for the device."""
        while self.in_flight:
            with suppress(Exception):  # whatever has become of the device, nothing is in flight afterwards
                self.in_flight[0].pending.read()
            self.ring.give_back(self.in_flight.popleft().pending)
        self.step.rows.forget()
