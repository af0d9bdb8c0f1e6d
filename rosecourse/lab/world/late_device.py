"""A device of one stream that is late: it does what it is told in order, and not before somebody waits for it.

A CPU runs each operation inside the call, so that nobody can learn there to wait. Here operations are queued, and the
memory that they will write holds poison until they are done.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from .late_tensors import OnDevice, fill_with_poison

PACES = ("late", "prompt", "by chance")
SEED = 7


@dataclass(frozen=True)
class Wait:
    """The host has waited. for_told: for so many of the things that the device had been told. during: which call of
    the part. leaves_idle: whether the step that was launched last is among them: the device has no step to do then."""

    for_told: int
    during: str
    leaves_idle: bool


@dataclass(frozen=True, eq=False)
class HostCopy:
    """Tokens on their way to the host. of: the number of the step that has made them. begin, end: the addresses of the
    memory. told: how many things the device had been told, this copy included."""

    of: int
    begin: int
    end: int
    told: int

    def overlaps(self, other: HostCopy) -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass(eq=False)
class LateDevice:
    """What the device has been told, and how much of it is done.

    pace: `late`, nothing before somebody waits; `prompt`, everything at once; `by chance`, something in between.
    failure: what the next wait raises, once; dead: what each wait raises. Only those in `land` and `abandon` fail.
    """

    pace: str = "late"
    told: int = 0
    done: int = 0
    during: str = ""
    failure: BaseException | None = None
    dead: BaseException | None = None
    has_failed: bool = False  # in the call of the part that is under way
    waits: list[Wait] = field(default_factory=list)
    copies: list[HostCopy] = field(default_factory=list)
    newest: int = 0  # the number of the step that was told last
    newest_told: int = 0  # how much had been told then, the step included
    _queue: deque[Callable[[], object]] = field(default_factory=deque)
    _dice: random.Random = field(default_factory=lambda: random.Random(SEED))
    _made_by: dict[int, int] = field(default_factory=dict)  # memory of the device -> the step whose tokens it holds

    def tell(self, work: Callable[[], object]) -> None:
        """Something to do, behind all that was told before."""
        self._queue.append(work)
        self.told += 1
        self.go_on()

    def tell_step(self, number: int, work: Callable[[], object], *written: torch.Tensor) -> None:
        """A decode step that writes these tensors."""
        self.newest, self.newest_told = number, self.told + 1
        for tensor in written:
            self._made_by[memory_of(tensor)] = number
        self.tell(work)

    def go_on(self) -> None:
        """Time passes: the device does as much as its pace lets it."""
        pending = self.told - self.done
        self._do({"late": 0, "prompt": pending}.get(self.pace, self._dice.randint(0, pending)))

    def wait(self, for_told: int | None = None) -> None:
        """Wait until so many things are done; None is all that the device has been told."""
        for_told = self.told if for_told is None else for_told
        self.waits.append(Wait(for_told, self.during, 0 < self.newest_told <= for_told))
        if self.during in ("land", "abandon"):
            self._fail()
        self._do(for_told - self.done)

    def _fail(self) -> None:
        failure, self.failure = self.failure or self.dead, None
        if failure is not None:
            self.has_failed = True
            raise failure

    def revive(self) -> None:
        """Nothing fails any more; what the device had been told is gone."""
        self.dead = self.failure = None
        self._queue.clear()
        self.done = self.told

    def _do(self, number: int) -> None:
        with torch.inference_mode():
            for _ in range(number):
                self._queue.popleft()()
                self.done += 1

    # -- tensors ------------------------------------------------------------------------------------------------------

    def holds(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor as one of the device's: the host sees what it holds only by waiting."""
        return OnDevice.on(self, tensor)

    def made(self, result: torch.Tensor, source: torch.Tensor) -> None:
        """A result in new memory of the device is made of what lies in another."""
        self._made_by[memory_of(result)] = self._made_by.get(memory_of(source), self.newest)

    def copy_to_host(self, memory: torch.Tensor, source: torch.Tensor, blocking: bool) -> None:
        """Copy a tensor of the device, which is given plainly here, to the host's memory."""
        memory.copy_(source)  # raises for other shapes at once
        fill_with_poison(memory)
        begin = memory.data_ptr()
        end = begin + memory.numel() * memory.element_size()
        of = self._made_by.get(memory_of(source), self.newest)
        self.copies.append(HostCopy(of, begin, end, self.told + 1))
        self.tell(lambda: memory.copy_(source))
        if blocking:
            self.wait()


def memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class LateEvent:
    """A mark in what a late device has been told."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self._at = device, 0

    def record(self) -> None:
        """Stand behind all that has been told."""
        self._at = self._device.told
        self._device.go_on()

    def synchronize(self) -> None:
        """Wait until the device has come as far."""
        self._device.wait(self._at)

    def query(self) -> bool:
        """Whether it has. Who asks again and again waits, too: each time the device does one thing more."""
        if self._device.done < self._at:
            self._device.wait(self._device.done + 1)
        return self._device.done >= self._at
