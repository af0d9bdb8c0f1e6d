"""The kernels of a step in their order; on a CPU what would be kernels on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..kernels.launch import Launch
from .counters import DispatchMode

NOTHING_RUNS = ("empty", "new_empty", "detach", "_record_function")  # operations whose names begin so


class _Notes(DispatchMode):
    """Operations of torch that compute or move something, and kernels of the course, which are one each."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []
        self.within = False  # a kernel of the course, whose operations are those of Triton's interpreter

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
            with self:  # made of others, which count
                return func.decompose(*args, **kwargs)
        is_view = not func._schema.is_mutable and any(out.alias_info is not None for out in func._schema.returns)
        name, made = func.overloadpacket.__name__, func(*args, **kwargs)
        # A copy engine brings numbers to the host, and no kernel.
        to_host = isinstance(made, torch.Tensor) and made.is_cpu and any(getattr(one, "is_cuda", False) for one in args)
        if not (is_view or name.startswith(NOTHING_RUNS) or self.within or to_host):
            self.kernels.append(name)
        return made

    def launched(self, launch: Any, grid: Any, arguments: tuple) -> None:
        """Launch a kernel of the course, interpreted or compiled."""
        kernel = launch.kernel
        self.kernels.append(getattr(kernel, "__name__", None) or kernel.metadata.name)
        self.within = True
        try:
            kernel[grid](*arguments, *launch.constants)
        finally:
            self.within = False


@contextmanager
def noted_kernels() -> Iterator[list[str]]:
    """The names of all kernels that are launched inside the block, in their order.

    with noted_kernels() as kernels:
        engine.decode_step_sessions(sessions)
    """
    notes = _Notes()
    with notes, Launch.handed_to(notes.launched):
        yield notes.kernels
