"""Launches in Triton's interpreter, watched: who begins, what is read and stored, who waits and lets others start."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ...kernels import TRITON_AVAILABLE
from .early_start import heard_by
from .kernel_memory import ACCESSES, TAKE_ARGUMENTS
from .program_order import Access, Launched, their_line_from
from .written_memory import Written, span_of

if TRITON_AVAILABLE:
    from triton.runtime import interpreter

Hooked = Callable[..., Any]  # a method of the interpreter
EARLY = "launch_pdl"  # Triton's option of a launch that may start before the kernel before it has ended
RUN, NEXT = "__call__", "set_grid_idx"  # where the interpreter launches, and where a program begins


class Watch:
    """Of the launches within `watching`. launched: those of them that have ended."""

    def __init__(self, written: Written) -> None:
        self.written = written
        self.launched: list[Launched] = []
        self._now: Launched | None = None
        self._tensors: Mapping[str, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In here kernels are watched. Nothing is watched where Triton is not interpreted."""
        if not TRITON_AVAILABLE:
            yield
            return
        executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
        hooks = {RUN: self._running, TAKE_ARGUMENTS: self._taking}
        replaced = [*((executor, name, hook) for name, hook in hooks.items()), (builder, NEXT, self._next)]
        originals = [(where, name, getattr(where, name)) for where, name, _ in replaced]
        originals += [(builder, name, getattr(builder, name)) for name in ACCESSES]
        for where, name, around in replaced:
            setattr(where, name, around(getattr(where, name)))
        for name, access in ACCESSES.items():
            setattr(builder, name, self._accessing(getattr(builder, name), *access))
        try:
            with heard_by(self._hear):
                yield
        finally:
            for where, name, original in originals:
                setattr(where, name, original)

    def _hear(self, what: str) -> None:
        if self._now is not None:
            self._now.hear(what)

    def _running(self, original: Hooked) -> Hooked:
        def run(executor: Any, *arguments: Any, **options: Any) -> Any:
            written = self.written
            self._now = Launched(executor.fn.__name__, bool(options.get(EARLY)), written.newest, written.step)
            written.in_launch = True
            try:
                return original(executor, *arguments, **options)
            finally:
                written.in_launch = False
                self.launched.append(self._now)
                written.by_kernel(self._now.stored)
                self._now = None

        return run

    def _taking(self, original: Hooked) -> Hooked:
        def take(executor: Any, arguments: Any, options: Any) -> Any:
            taken = original(executor, arguments, options)
            given = inspect.getcallargs(executor.fn, *taken[0], **taken[1])
            self._tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
            return taken

        return take

    def _next(self, original: Hooked) -> Hooked:
        def begin(builder: Any, *number: int) -> Any:
            if self._now is not None:
                self._now.begin((number[0], number[1], number[2]))
            return original(builder, *number)

        return begin

    def _accessing(self, original: Hooked, verb: str, pointers: int, used: int | None) -> Hooked:
        def access(builder: Any, *arguments: Any) -> Any:
            if self._now is not None:
                handle = arguments[pointers]
                addresses = np.asarray(handle.data, dtype=np.uint64).reshape(-1)
                if used is not None:
                    mask = np.broadcast_to(np.asarray(arguments[used].data, dtype=bool), handle.data.shape)
                    addresses = addresses[mask.reshape(-1)]
                if len(addresses):
                    seen = Access(
                        self._tensor_at(int(addresses[0])), addresses, their_line_from(inspect.currentframe())
                    )
                    (self._now.read if verb == "reads" else self._now.store)(seen)
            return original(builder, *arguments)

        return access

    def _tensor_at(self, address: int) -> str:
        """The name of the launch's argument in which an address lies."""
        for name, tensor in self._tensors.items():
            start, end = span_of(tensor)
            if start <= address < end:
                return name
        return "memory of no argument"
