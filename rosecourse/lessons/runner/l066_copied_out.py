"""The runner of lessons 066 to 070: what a graph makes is copied out of the memory that all graphs share."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable

import torch
from tqdm import tqdm

from ...config import EngineConfig
from ...decode.cpu_graph import CPUGraph
from ...decode.device_step import DeviceStep, Outcome
from ...decode.graphs import CUDAGraphs, Graph
from ...decode.inputs import DecodeInputs
from ...decode.runner import LATE, buckets_up_to, free_memory
from ...decode.sampling import best_of_each, best_on
from ...kv.one_table import KVBlockManager
from ...models.shape import Model


class GraphRunner:
    """A graph for each bucket, captured when the engine starts; a step is one replay of the next larger one.

    Those that sample are captured when they are first needed. A CPU has no graphs, and where a capture fails there are
    none either: the steps then run eagerly. vLLM and SGLang capture their decode steps so.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.new_graph = self.graphs_of(kv.device)
        self.best = best_on(kv.device) if self.new_graph is None else best_of_each
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs: dict[tuple[int, bool], Graph] = {}  # of a bucket, and whether it samples
        self.memory_bytes = 0  # that the captures have taken from the device, the kernels that they loaded among them
        # What a replay leaves behind lies outside the memory that all graphs share.
        self.logits = torch.empty(self.buckets[-1], model.shape.vocab_size, dtype=model.dtype, device=kv.device)
        self.tokens = torch.empty(self.buckets[-1], dtype=torch.int64, device=kv.device)

    def graphs_of(self, device: torch.device) -> Callable[[], Graph] | None:
        """What makes a graph on a device; None where there are none."""
        return CUDAGraphs() if device.type == "cuda" else None

    def start(self, work: DeviceStep) -> None:
        """Capture a greedy step of each bucket, the largest first: the others fit into its memory."""
        self.work = work
        if self.new_graph is not None:
            with torch.inference_mode():
                for bucket in tqdm(self.buckets[::-1], "graphs", leave=False, delay=2.0, disable=None):
                    self._capture(bucket, False)

    def _capture(self, bucket: int, sampled: bool) -> None:
        """Leaves the rows as they are. Where it fails, there are no graphs from then on."""

        def run() -> None:
            logits, tokens = self.work(self.work.rows.view(bucket).inputs, sampled)
            self.logits[:bucket].copy_(logits)
            self.tokens[:bucket].copy_(tokens)

        if self.new_graph is None:
            return
        free = free_memory(self.logits.device)
        try:
            graph = self.new_graph()
            with self.work.rows.all_pads():
                graph.warm_up(run)
            graph.capture(run)
            self.graphs[bucket, sampled] = graph
            self.memory_bytes += max(0, free - free_memory(self.logits.device))
        except Exception as error:
            self.graphs.clear()
            self.new_graph = None
            self.memory_bytes = 0
            first_line = str(error).partition("\n")[0]
            warnings.warn(f"no graph of {bucket} rows, so decode steps run eagerly: {first_line}", stacklevel=2)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        if self.new_graph is not None and (bucket, sampled) not in self.graphs:
            warnings.warn(LATE, stacklevel=2)
            self._capture(bucket, sampled)
        graph = self.graphs.get((bucket, sampled))
        if graph is None:
            return self.work(inputs, sampled)
        graph.replay()
        return Outcome(self.logits[:num_rows], self.tokens[:num_rows])


class CPUGraphRunner(GraphRunner):
    """The same with graphs of a CPU, which are for learning: they are slower than no graphs."""

    def graphs_of(self, device: torch.device) -> Callable[[], Graph] | None:
        return CPUGraph
