"""Parts for learning what a graph does, on a CPU too: they are slower than those of the engine."""

from bisect import bisect_left
from collections.abc import Callable

import torch

from ...config import EngineConfig
from ...decode.forward import AppendFirst, DecodeForward
from ...decode.graphs import Graph
from ...decode.inputs import DecodeInputs
from ...decode.runner import EagerRunner, GraphRunner, Outcome, buckets_up_to
from ...decode.sampling import argmax
from ...kernels import ReferenceAttention
from ...kv.blocks import KVBlockManager
from ...lessons import l066
from ...models.shape import Model
from .cpu_graph import CPUGraph, graphs_for


class CPUGraphRunner(GraphRunner):
    """The engine's runner, with graphs of a CPU."""

    def graphs_of(self, device: torch.device) -> Callable[[], Graph] | None:
        return CPUGraph


class CPUGraphRunnerOf066(l066.GraphRunner):
    """The same, as lesson 066 has it."""

    def graphs_of(self, device: torch.device) -> Callable[[], Graph]:
        return graphs_for(device)


class PaddedRunner(EagerRunner):
    """Runs eagerly over all rows of a bucket: what a graph computes, bit for bit."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = argmax
        self.buckets = buckets_up_to(config.max_batch_size)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        logits, tokens = self.work(self.work.rows.view(bucket).inputs, sampled)
        return Outcome(logits[:num_rows], tokens[:num_rows])


class FixedWidthForward(DecodeForward):
    """A forward on a CPU whose attention is as wide as the longest session can be, so that a graph can record it."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        super().__init__(model, kv, config)
        self.attend = AppendFirst(ReferenceAttention(kv))
