"""Parts `device_step` and `runner`: what the device does in a step, and how it gets there, op by op or as a graph."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ..config import EngineConfig
from ..kernels import choose, triton_runs_on
from ..kv.blocks import KVBlockManager
from ..models.shape import Model
from .graphs import CUDAGraphs, Graph
from .inputs import DecodeInputs
from .sampling import Best, argmax, argmax_on, next_tokens

# The same each time, so that Python shows it once; `warnings.filterwarnings("ignore", "graphs of steps")` silences it.
LATE = "graphs of steps that sample are captured as they are needed: the first step of each batch size takes longer"


def buckets_up_to(most: int) -> tuple[int, ...]:
    """The batch sizes that have a graph: 1, 2, 4 and the multiples of 8, as in vLLM, and the largest batch."""
    return (*[size for size in (1, 2, 4, *range(8, most, 8)) if size < most], most)


def free_memory(device: torch.device) -> int:
    """Bytes that a GPU has left, for whoever asks for them; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


class Outcome(NamedTuple):
    logits: Tensor  # [B, vocab_size]
    tokens: Tensor  # int64 [B], the next ones, or `sampling.NO_TOKEN`


class DeviceStep:
    """Part `device_step`, a function of tensors that stay where they are: forward with append, advance, sampling.

    The host decides nothing in between. On a GPU the end of a greedy step is one kernel, which advances the rows, too:
    `kernels.choose`, or that of operations that know more of their logits than the numbers (`five_kernels`).
    """

    def __init__(self, forward: Any, kv_append: Any, rows: Any, best: Best) -> None:
        self.forward, self.kv_append, self.rows, self.best = forward, kv_append, rows, best
        self.choose = getattr(getattr(getattr(forward, "model", None), "ops", None), "choose", choose)

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        """One more token for each row. sampled: whether any row asks for more than the most probable token."""
        view = self.rows.view(len(inputs.token_ids))
        logits = self.forward(inputs, self.kv_append(inputs))
        if not sampled and logits.is_cuda and triton_runs_on(logits.device):
            return Outcome(logits, self.choose(logits, view.live, view.inputs.token_ids, view.inputs.context_lens))
        inputs.context_lens.add_(view.live)
        tokens = next_tokens(logits, view.metadata, self.best) if sampled else self.best(logits)
        inputs.token_ids.copy_(tokens.clamp(min=0))  # a pad's, and NO_TOKEN, must be of the vocabulary
        return Outcome(logits, tokens)


class EagerRunner:
    """The host launches one operation after another."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.best = argmax_on(kv.device)

    def start(self, work: DeviceStep) -> None:
        self.work = work

    def __call__(self, inputs: DecodeInputs, sampled: bool) -> Outcome:
        return self.work(inputs, sampled)


class GraphRunner:
    """A graph for each bucket, captured when the engine starts; a step is one replay of the next larger one.

    Those that sample are captured when they are first needed. A CPU has no graphs, and where a capture fails there are
    none from then on: the steps run eagerly. vLLM and SGLang capture their decode steps so.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.new_graph = self.graphs_of(kv.device)
        self.best = argmax_on(kv.device) if self.new_graph is None else argmax
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs: dict[tuple[int, bool], Graph] = {}  # of a bucket, and whether it samples
        self.outcomes: dict[tuple[int, bool], Outcome] = {}  # where a replay leaves what it has made
        self.memory_bytes = 0  # that the captures have taken from the device, the kernels that they loaded among them
        self.device = kv.device

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
        """Leaves the rows as they are."""

        def run() -> None:  # its outcome is kept: no other graph gets that memory
            self.outcomes[bucket, sampled] = self.work(self.work.rows.view(bucket).inputs, sampled)

        if self.new_graph is None:
            return
        free = free_memory(self.device)
        try:
            graph = self.new_graph()
            with self.work.rows.all_pads():
                graph.warm_up(run)
            graph.capture(run)
            self.graphs[bucket, sampled] = graph
            self.memory_bytes += max(0, free - free_memory(self.device))
        except Exception as error:
            self.graphs, self.outcomes, self.new_graph, self.memory_bytes = {}, {}, None, 0
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
        logits, tokens = self.outcomes[bucket, sampled]
        return Outcome(logits[:num_rows], tokens[:num_rows])
