"""Marks in what a device has been told to do, which the host can wait for: for pipelines that are written to learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import torch


class Event(Protocol):
    """A mark, as `torch.cuda.Event` makes it."""

    def record(self) -> None:
        """Stand behind all that the device has been told so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come as far as the mark; at once where there is none yet."""
        ...

    def query(self) -> bool:
        """Whether it has come as far."""
        ...


class Passed:
    """A mark on a CPU, which has done everything as soon as it is told."""

    def record(self) -> None:
        """Nothing is under way."""

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def query(self) -> bool:
        """It is all done."""
        return True


Maker = Callable[[], Event]

# What makes the events of a CPU: others in the place of `Passed` may belong to a device that is late.
_ON_A_CPU: ContextVar[Maker] = ContextVar("events of a CPU", default=Passed)


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
