"""Part `runner`: how the operations of a step come to the device, one by one or as one graph."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable

import torch
from tqdm import tqdm

from ..config import EngineConfig
from ..kv.one_table import KVBlockManager
from ..models.shape import Model
from .cpu_graph import CPUGraph
from .device_step import DeviceStep, Outcome
from .graphs import CUDAGraphs, Graph
from .inputs import DecodeInputs
from .sampling import best_of_each, best_on


def buckets_up_to(most: int) -> tuple[int, ...]:
    """The batch sizes that have a graph: 1, 2, 4 and the multiples of 8, as in vLLM, and the largest batch there is."""
    return (*[size for size in (1, 2, 4, *range(8, most, 8)) if size < most], most)


class EagerRunner:
    """The host launches one operation after another."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = best_on(kv.device)

    def start(self, work: DeviceStep) -> None:
        """Take the work to run; once, when the engine is built."""
        self.work = work

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        return self.work(inputs, sampled)


class PaddedRunner(EagerRunner):
    """The same over all rows of a bucket: what a graph computes, bit for bit."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = best_of_each
        self.buckets = buckets_up_to(config.max_batch_size)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        logits, tokens = self.work(self.work.rows.view(bucket).inputs, sampled)
        return Outcome(logits[:num_rows], tokens[:num_rows])


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
        try:
            graph = self.new_graph()
            with self.work.rows.all_pads():
                graph.warm_up(run)
            graph.capture(run)
            self.graphs[bucket, sampled] = graph
        except Exception as error:
            self.graphs.clear()
            self.new_graph = None
            first_line = str(error).partition("\n")[0]
            warnings.warn(f"no graph of {bucket} rows, so decode steps run eagerly: {first_line}", stacklevel=2)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        if (bucket, sampled) not in self.graphs:
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
