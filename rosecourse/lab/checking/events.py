"""Marks in what a device has been told to do, which the host can wait for, and a device that is late.

A CPU runs each operation inside the call, so that nobody can learn there to wait. The late device has one stream: it
does what it is told in order, and not before somebody waits for it. Operations on its tensors are queued, and the
memory that they will write holds poison until they are done.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.utils._pytree import tree_leaves, tree_map

POISON = -(2**40) - 7  # what nobody can take for a token
PACES = ("late", "never late", "late by chance")
# What is known of a tensor without its numbers.
KNOWN = {"size", "dim", "numel", "nelement", "ndimension", "stride", "storage_offset", "element_size", "is_contiguous"}
KNOWN |= {"data_ptr", "untyped_storage", "get_device", "is_floating_point", "is_pinned", "type", "__len__", "__hash__"}
Maker = Callable[[], Any]

# What makes the events of a CPU: others in the place of torch's, which have always passed, may belong to a device that
# is late.
_ON_A_CPU: ContextVar[Maker] = ContextVar("events of a CPU", default=torch.cpu.Event)


def events_for(device: torch.device) -> Maker:
    """What makes an event on a device: `new_event = events_for(kv.device)`, and then `event = new_event()`."""
    return torch.cuda.Event if device.type == "cuda" else _ON_A_CPU.get()


@contextmanager
def cpu_events_by(maker: Maker) -> Iterator[None]:
    """In here `events_for` gives another maker on a CPU."""
    token = _ON_A_CPU.set(maker)
    try:
        yield
    finally:
        _ON_A_CPU.reset(token)


class LateDevice:
    """What the device has been told, and how much of it is done; both are counted.

    pace: `late`, nothing before somebody waits; `never late`, everything at once; or something in between. fails: what
    the waits to come raise, one each; dead: what all of them raise. copies: to the host; idle_waits: those after which
    the device has no step to do.
    """

    def __init__(self, pace: str) -> None:
        self.pace, self.dice = pace, random.Random(7)
        self.told = self.done = self.newest_step = self.copies = self.idle_waits = 0
        self.fails: BaseException | None = None
        self.dead: BaseException | None = None
        self.queue: deque[Callable[[], object]] = deque()

    def tell(self, work: Callable[[], object]) -> None:
        self.queue.append(work)
        self.told += 1
        self.go_on()

    def tell_step(self, work: Callable[[], object]) -> None:
        self.newest_step = self.told + 1
        self.tell(work)

    def go_on(self) -> None:
        if self.pace != "late":
            pending = self.told - self.done
            self._do(pending if self.pace == "never late" else self.dice.randint(0, pending))

    def wait(self, for_told: int | None = None) -> None:
        """Wait until so many things are done; None is all that the device has been told."""
        for_told = self.told if for_told is None else for_told
        self.idle_waits += 0 < self.newest_step <= for_told
        failure, self.fails = self.fails or self.dead, None
        if failure is not None:
            raise failure
        self._do(for_told - self.done)

    def revive(self) -> None:
        """Nothing fails any more; what the device had been told is gone."""
        self.fails = self.dead = None
        self.queue.clear()
        self.done = self.told

    def _do(self, number: int) -> None:
        with torch.inference_mode():
            for _ in range(number):
                self.queue.popleft()()
                self.done += 1

    def holds(self, tensor: Tensor) -> Tensor:
        """A tensor as one of the device's: the host sees what it holds only by waiting."""
        made = tensor.as_subclass(OnDevice)
        made.stream = self
        return made

    def copy_to_host(self, memory: Tensor, source: Tensor, blocking: bool) -> None:
        memory.copy_(source)  # raises for other shapes at once
        poison(memory)
        self.copies += 1
        self.tell(lambda: memory.copy_(source))
        if blocking:
            self.wait()


class LateEvent:
    """A mark in what a late device has been told."""

    def __init__(self, device: LateDevice) -> None:
        self.device, self.at = device, 0

    def record(self) -> None:
        self.at = self.device.told
        self.device.go_on()

    def synchronize(self) -> None:
        self.device.wait(self.at)

    def query(self) -> bool:
        """Whether it has. Who asks again and again waits, too: each time the device does one thing more."""
        if self.device.done < self.at:
            self.device.wait(self.device.done + 1)
        return self.device.done >= self.at


def poison(memory: Tensor) -> None:
    """What lies in memory that is going to be written."""
    with torch.inference_mode():
        if memory.dtype in (torch.int64, torch.int32):
            memory.fill_(POISON if memory.dtype is torch.int64 else -(2**30))
        else:
            memory.fill_(float("nan") if memory.dtype.is_floating_point else 0)


class OnDevice(Tensor):
    """A tensor in the memory of a late device; its numbers are poison until the device has come so far."""

    stream: LateDevice

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with DisableTorchFunctionSubclass():
            return _Operation(func, args, dict(kwargs or {})).act()


class _Operation:
    """One operation of which at least one tensor is the device's."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.theirs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, OnDevice)]
        self.stream = self.theirs[0].stream
        is_attribute = func.__name__ == "__get__"
        self.name = func.__self__.__name__ if is_attribute else func.__name__
        self.is_known = is_attribute or self.name in KNOWN

    def act(self) -> Any:
        if self.name in ("numpy", "__array__"):
            raise TypeError("can't convert a tensor of the device to numpy: copy it to the host first")
        if self.name == "cpu" or (self.name == "to" and "cpu" in map(str, (*self.args[1:], *self.kwargs.values()))):
            memory, source = torch.empty_like(_plain(self.args[0])), _plain(self.args[0])
            self.stream.copy_to_host(memory, source, self.name == "cpu" or not self._is_asynchronous())
            return memory
        if self.name == "__setitem__" or (self.name.endswith("_") and not self.name.endswith("__")):
            return self._in_place(self.args[0])
        return self._returned()

    def _is_asynchronous(self) -> bool:
        return bool(self.kwargs.get("non_blocking") or True in [one for one in self.args[1:] if isinstance(one, bool)])

    def _in_place(self, target: Any) -> Any:
        if isinstance(target, OnDevice):
            self.stream.tell(self._later())
        elif self.name == "copy_":
            self.stream.copy_to_host(target, _plain(self.args[1]), not self._is_asynchronous())
        else:
            self.stream.wait()
            return self._later()()
        return target

    def _returned(self) -> Any:
        """What it returns: a view at once, new tensors when the device has made them, numbers after a wait."""
        later = self._later()
        result = later()
        results = _tensors(result)
        if not results and not self.is_known:
            self.stream.wait()
            result = later()
        there = {tensor.untyped_storage().data_ptr() for tensor in self.theirs}
        new = [tensor for tensor in results if tensor.untyped_storage().data_ptr() not in there]
        if new:
            for tensor in new:
                poison(tensor)
            self.stream.tell(lambda: [old.copy_(made) for old, made in zip(results, _tensors(later()), strict=True)])
        return tree_map(lambda one: self.stream.holds(one) if isinstance(one, Tensor) else one, result)

    def _later(self) -> Callable[[], Any]:
        func, args, kwargs = self.func, tree_map(_plain, self.args), tree_map(_plain, self.kwargs)
        return lambda: func(*args, **kwargs)


def _plain(value: Any) -> Any:
    return value.as_subclass(Tensor) if isinstance(value, OnDevice) else value


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
