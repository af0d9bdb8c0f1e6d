"""What exercises end as, where the lesson's own part would do something else on a CPU."""

from __future__ import annotations

from bisect import bisect_left

import torch

from ...config import EngineConfig
from ...decode.graphs import Graph
from ...decode.inputs import DecodeInputs
from ...decode.runner import DeviceStep, Outcome, buckets_up_to
from ...decode.sampling import argmax
from ...kv.blocks import KVBlockManager
from ...models.shape import Model
from ..checking.graph_makers import graphs_for


class Runner:
    """A graph for each bucket, captured at the start; a step is one replay of the smallest that fits.

    The engine's own part goes on eagerly where a capture fails, and has no graphs on a CPU.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = argmax  # a function of tensors alone
        self.new_graph = graphs_for(kv.device)
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs: dict[tuple[int, bool], Graph] = {}  # of a bucket, and whether it samples
        most = self.buckets[-1]  # what a replay leaves behind lies outside the memory that all graphs share
        self.logits = torch.empty(most, model.shape.vocab_size, dtype=model.dtype, device=kv.device)
        self.tokens = torch.empty(most, dtype=torch.int64, device=kv.device)

    @torch.inference_mode()
    def start(self, work: DeviceStep) -> None:
        """Capture a greedy step of each bucket, the largest first: the others fit into its memory."""
        self.work = work
        for bucket in reversed(self.buckets):
            self.graphs[bucket, False] = self.captured(bucket, False)

    def captured(self, bucket: int, sampled: bool) -> Graph:
        """A graph of a step over a bucket; the sessions in the rows stay as they are."""
        inputs = self.work.rows.view(bucket).inputs  # those of any step

        def run() -> None:
            logits, tokens = self.work(inputs, sampled)
            self.logits[:bucket].copy_(logits)
            self.tokens[:bucket].copy_(tokens)

        graph = self.new_graph()
        with self.work.rows.all_pads():
            graph.warm_up(run)
        graph.capture(run)
        return graph

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """Replay the graph of the smallest bucket that has a row for each session."""
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        if (bucket, sampled) not in self.graphs:  # steps that sample are captured when they are first needed
            self.graphs[bucket, sampled] = self.captured(bucket, sampled)
        self.graphs[bucket, sampled].replay()
        return Outcome(self.logits[:num_rows], self.tokens[:num_rows])
