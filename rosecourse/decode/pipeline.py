"""Part `pipeline`: when the host reads what a step has made."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..config import EngineConfig
from ..errors import RosecourseError
from ..kernels import to_host_on
from ..kv.blocks import KVBlockManager
from ..kv.guards import bookkeeping
from .inputs import Batch
from .sampling import next_tokens, sampling_metadata
from .step import DecodeStep, range_for

Copy = Callable[[Tensor, Tensor], Any]  # from the first tensor to the second, where nobody waits

FULL = "all slots of the ring hold tokens that nobody has read: land a step first"


class Slot:
    """Tokens of one step, on their way to the host."""

    def __init__(self, max_rows: int, device: torch.device, copy: Copy | None = None) -> None:
        self.copy = copy or (lambda tokens, host: host.copy_(tokens, non_blocking=True))
        self.pinned = device.type == "cuda"
        self.copied = torch.cuda.Event() if self.pinned else None
        self.host = torch.empty(max_rows, dtype=torch.int64, device="cpu", pin_memory=self.pinned)

    def write(self, tokens: Tensor) -> None:
        """Let the device copy int64 [B] here when it gets there; the host does not wait."""
        self.size = len(tokens)
        if self.size > len(self.host):  # the samples of a prefill may be more than a step has rows
            self.host = torch.empty(self.size, dtype=torch.int64, device="cpu", pin_memory=self.pinned)
        self.copy(tokens, self.host[: self.size])
        if self.copied is not None:
            self.copied.record()

    def read(self) -> list[int]:
        if self.copied is not None:
            self.copied.synchronize()
        return self.host[: self.size].tolist()


class PinnedSlot(Slot):
    """One that a device writes to. When it goes, the memory may be somebody else's: first the device has to be done."""

    def __del__(self) -> None:  # not in `Slot`: an interrupt that comes in here is lost
        if self.copied is not None:
            self.copied.synchronize()


class TokenRing:
    """As many slots as steps can be in flight: none is written again before the host has read it.

    (vLLM's asynchronous scheduling reads sampled tokens so, SGLang's overlap scheduler through a buffer of futures.)
    """

    def __init__(self, num_slots: int, max_rows: int, device: torch.device, copy: Copy | None = None) -> None:
        kind = PinnedSlot if device.type == "cuda" else Slot
        self.empty = deque(kind(max_rows, device, copy) for _ in range(num_slots))

    def put(self, tokens: Tensor) -> Slot:
        """Start copying a step's tokens to the host. Raises `RosecourseError` where no slot is empty."""
        if not self.empty:
            raise RosecourseError(FULL)
        self.empty[0].write(tokens)
        return self.empty.popleft()

    def give_back(self, slot: Slot) -> None:
        """The tokens of a slot have been read, or nobody wants them: it may be written again."""
        self.empty.append(slot)


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
        self.ring = TokenRing(self.steps_ahead + 1, config.max_batch_size, kv.device, to_host_on(kv.device))
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
