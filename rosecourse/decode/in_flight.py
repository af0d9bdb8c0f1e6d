"""Steps in flight: what the device has been told to do, and whose tokens the host has not read yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import RosecourseError
from ..kernels.reference import to_host
from ..request.session import InferenceSession

Copy = Callable[[Tensor, Tensor], None]


class StepInFlight:
    """One decode step between its launch and its landing.

    sessions: whose row b of the step is, with the `tables` that they had: a table that a session holds no longer says
    that the row's token is nobody's. user: a weak reference to the scheduler that launched it, or None. made: where its
    tokens come to be.
    """

    def __init__(self, sessions: Sequence[InferenceSession], user: Any, made: Any) -> None:
        self.sessions = list(sessions)
        self.tables = [session.table for session in sessions]
        self.user, self.made = user, made

    @cached_property
    def members(self) -> frozenset[InferenceSession]:
        """The sessions, to look one up."""
        return frozenset(self.sessions)


class Slot:
    """Tokens of one step, on their way to the host."""

    def __init__(self, max_rows: int, device: torch.device, copy: Copy = to_host) -> None:
        self.copy = copy
        self.pinned = device.type == "cuda"
        self.copied = torch.cuda.Event() if self.pinned else None
        self.host = torch.empty(max_rows, dtype=torch.int64, device="cpu", pin_memory=self.pinned)
        self.size = 0

    def write(self, tokens: Tensor) -> None:
        """Let the device copy int64 [B] here when it gets there; the host does not wait."""
        self.size = len(tokens)
        if self.size > len(self.host):  # the samples of a prefill may be more than a step has rows
            self.host = torch.empty(self.size, dtype=torch.int64, device="cpu", pin_memory=self.pinned)
        self.copy(tokens, self.host[: self.size])
        if self.copied is not None:
            self.copied.record()

    def read(self) -> list[int]:
        """The tokens; waits for them."""
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

    In pinned memory, each with an event. (vLLM's asynchronous scheduling reads sampled tokens so, SGLang's overlap
    scheduler through a buffer of futures.)
    """

    def __init__(self, num_slots: int, max_rows: int, device: torch.device, copy: Copy = to_host) -> None:
        """copy: writes tokens, int64 [B] on the device, to memory of the host; nobody waits for it."""
        kind = PinnedSlot if device.type == "cuda" else Slot
        self.empty = deque(kind(max_rows, device, copy) for _ in range(num_slots))

    def require_slot(self) -> None:
        """Raise `RosecourseError` where no slot is empty."""
        if not self.empty:
            raise RosecourseError("all slots of the ring hold tokens that nobody has read: land a step first")

    def put(self, tokens: Tensor) -> Slot:
        """Start copying a step's tokens to the host. Raises `RosecourseError` where no slot is empty."""
        self.require_slot()
        self.empty[0].write(tokens)
        return self.empty.popleft()

    def give_back(self, slot: Slot) -> None:
        """The tokens of a slot have been read, or nobody wants them: it may be written again."""
        self.empty.append(slot)
