"""What makes a graph on a device, a CPU included: for runners that are written to learn how graphs work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from ...decode.graphs import CUDAGraphs, Graph
from .cpu_graph import CPUGraph

Maker = Callable[[], Graph]

# What makes the graphs of a CPU: others in the place of `CPUGraph` may note what is done with them.
_ON_A_CPU: ContextVar[Maker] = ContextVar("graphs of a CPU", default=CPUGraph)


def graphs_for(device: torch.device) -> Maker:
    """What makes a graph on a device: `new_graph = graphs_for(kv.device)`, and then `graph = new_graph()`."""
    return CUDAGraphs() if device.type == "cuda" else _ON_A_CPU.get()


@contextmanager
def cpu_graphs_by(maker: Maker) -> Iterator[None]:
    """In here `graphs_for` gives another maker on a CPU."""
    token = _ON_A_CPU.set(maker)
    try:
        yield
    finally:
        _ON_A_CPU.reset(token)
