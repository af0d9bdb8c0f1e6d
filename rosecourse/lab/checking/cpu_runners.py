"""Parts for learning what a graph does, on a CPU too: they are slower than those of the engine."""

from collections.abc import Callable

import torch

from ...config import EngineConfig
from ...decode.forward import AppendFirst, DecodeForward
from ...decode.graphs import Graph
from ...kernels import ReferenceAttention
from ...kv.blocks import KVBlockManager
from ...lessons import l066
from ...models.shape import Model
from .cpu_graph import graphs_for


class CPUGraphRunnerOf066(l066.GraphRunner):
    """The runner of lesson 066, with graphs of a CPU."""

    def graphs_of(self, device: torch.device) -> Callable[[], Graph]:
        return graphs_for(device)


class FixedWidthForward(DecodeForward):
    """A forward on a CPU whose attention is as wide as the longest session can be, so that a graph can record it."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        super().__init__(model, kv, config)
        self.attend = AppendFirst(ReferenceAttention(kv))
