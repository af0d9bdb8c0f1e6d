"""Launches of Triton kernels, however a part makes them, and how often they read what is large.

On a GPU the time of a small product goes into reading its weights. The interpreter tells what each load reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ...kernels import TRITON_AVAILABLE
from ...kernels import launch as kernels
from .cpu_graph import CPUGraph
from .kernel_memory import Access, accesses_seen_by

if TRITON_AVAILABLE:
    from triton.runtime import JITFunction, interpreter

    LAUNCHERS: tuple[tuple[Any, str], ...] = ((interpreter.GridExecutor, "__call__"), (JITFunction, "run"))
else:
    LAUNCHERS = ()

Launch = Callable[[], Any]


@contextmanager
def launches_by(taker: Callable[[Launch], Any]) -> Iterator[None]:
    """In here a kernel is not launched: `taker` gets what launches it."""

    def instead_of(original: Any) -> Any:
        return lambda *arguments, **named: taker(lambda: original(*arguments, **named))

    with ExitStack() as stack:
        for launcher, name in LAUNCHERS:
            original = getattr(launcher, name)
            stack.callback(setattr, launcher, name, original)
            setattr(launcher, name, instead_of(original))
        yield


class Launches:
    """What was launched in the `with` blocks of `counted`.

    number: of launches. under_way: whether one is being made, whose operations are not the part's. times_read: how
    often a launch has read a tensor of more than `large` numbers, the most of all; 0 for kernels that are compiled, and
    where large is None.
    """

    def __init__(self, large: int | None = None) -> None:
        self.large = large
        self.number = self.times_read = 0
        self.under_way = False
        self._read: Counter[int] = Counter()  # by the launch under way: address of a tensor's memory -> bytes

    @contextmanager
    def counted(self) -> Iterator[None]:
        """In here launches are counted."""
        reads = nullcontext() if self.large is None else accesses_seen_by(partial(self._look, self.large))
        with launches_by(self._launch), reads:
            yield

    def _launch(self, launch: Launch) -> Any:
        if self.under_way:
            return launch()
        self.number += 1
        self.under_way = True
        self._read.clear()
        try:
            return launch()
        finally:
            self.under_way = False

    def _look(self, large: int, access: Access) -> None:
        """A number that a load reads several times, as one does that keeps its lanes inside, has been read once."""
        if access.verb != "reads":
            return
        for memory in access.launched:
            if memory.tensor.numel() > large:
                inside = access.addresses[(access.addresses >= memory.start) & (access.addresses < memory.end)]
                if len(inside):
                    self._read[memory.start] += len(np.unique(inside)) * memory.tensor.element_size()
                    times = self._read[memory.start] // (memory.end - memory.start)
                    self.times_read = max(self.times_read, times)


class GraphOfLaunches(CPUGraph):
    """A graph that holds kernels, too, however they are launched."""

    def capture(self, work: Callable[[], None]) -> None:
        with launches_by(lambda launch: kernels.Launch(_Anyhow(launch), ())((1, 1, 1))):
            super().capture(work)


class _Anyhow:
    """What launches a kernel, in the place of the kernel."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def __getitem__(self, grid: Any) -> Launch:
        return self.launch
