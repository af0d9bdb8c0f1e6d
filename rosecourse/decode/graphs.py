"""CUDA graphs: operations recorded once and replayed with one launch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

Work = Callable[[], None]


class Graph(Protocol):
    """A recording of operations on tensors that stay where they are.

    `warm_up` runs the work once, where it has to be before a capture: kernels are compiled, libraries set up. `capture`
    records what the work does, without doing it. `replay` does it.
    """

    def warm_up(self, work: Work) -> None: ...
    def capture(self, work: Work) -> None: ...
    def replay(self) -> None: ...


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """In here Python's garbage collector does nothing: what it frees, such as an event, would break a capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class CUDAGraphs:
    """Makes graphs that share their memory, since no two of them run at the same time."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()

    def __call__(self) -> CUDAGraph:
        return CUDAGraph(self.pool, self.stream)


class CUDAGraph:
    """The kernels of some work. They are recorded on a stream of their own, and replayed on whatever stream is used."""

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self.pool, self.stream = pool, stream
        self.graph = torch.cuda.CUDAGraph()

    def warm_up(self, work: Work) -> None:
        self._beside(work)

    def capture(self, work: Work) -> None:
        self._beside(self._record, work)

    def replay(self) -> None:
        self.graph.replay()

    def _record(self, work: Work) -> None:
        with collector_at_rest():
            self.graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")  # other threads may go on
            try:
                work()
            finally:
                self.graph.capture_end()

    def _beside(self, function: Callable[..., None], *args: Work) -> None:
        """Call a function on the stream of the recordings."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            function(*args)
        current.wait_stream(self.stream)
