"""The floor of a decode step: the bytes that it must read, over the bytes that this machine copies in a second.

Each step reads every weight once, for whatever batch, and the K and V of every live position once (Pope et al.,
"Efficiently scaling transformer inference", 2022). A kernel that only reads may be somewhat faster than a copy.
"""

from __future__ import annotations

import math
import time
from itertools import pairwise

import torch

from ..models.shape import Model, ModelShape
from .workload import Run, Workload


def weight_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of the weights that a decode step reads, each once; of embeddings it reads but a few rows.

    A token embedding that is the output projection, too, counts.
    """
    sizes = shape.parameters()
    few_rows = {"wpe.weight"} | ({"embed_tokens.weight"} if "lm_head.weight" in sizes else set())
    return dtype.itemsize * sum(math.prod(size) for name, size in sizes.items() if name not in few_rows)


def kv_bytes_per_position(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of K and V of one token in all layers."""
    return dtype.itemsize * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim


def bytes_per_run(model: Model, workload: Workload, run: Run) -> int:
    """Bytes that the decode steps of a run must read: in each, the weights and K and V of each live position.

    The first token of a request comes from prefill and needs no step. Exact for a run without preemptions.
    """
    positions = 0
    for prompt, times in zip(workload.prompts, run.times, strict=True):
        length = len(model.tokenizer.encode(prompt, verbose=False)) if isinstance(prompt, str) else len(prompt)
        positions += sum(range(length, length + len(times.tokens) - 1))
    shape, dtype = model.shape, model.dtype
    return run.stats.decode_steps * weight_bytes(shape, dtype) + positions * kv_bytes_per_position(shape, dtype)


def share_of_floor(num_bytes: float, seconds: float, bandwidth: float) -> float:
    """Floor seconds / measured seconds: 1.0 is as fast as the memory allows, more is a model that fits into a cache.

    num_bytes: of a step or of a run; seconds: how long that took; bandwidth: bytes per second, of `copy_bandwidth`.
    """
    return num_bytes / bandwidth / seconds


def copy_bandwidth(device: torch.device | str, budget: float = 0.3) -> float:
    """The most bytes per second, read and written together, that a device's memory moves when it copies.

    budget: seconds to measure, about. The two buffers have 1 GiB each on CUDA and 128 MiB on a CPU.
    """
    cuda = torch.device(device).type == "cuda"
    source = torch.ones(2**30 if cuda else 2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copies = 10 if cuda else 1  # at a time: enough that launching them does not count
    moments = [time.perf_counter()]
    while len(moments) < 3 or moments[-1] - moments[0] < budget:  # the first touch of memory is slower
        for _ in range(copies):
            target.copy_(source)
        if cuda:
            torch.cuda.synchronize()
        moments.append(time.perf_counter())
    return 2 * source.nbytes * copies / min(end - start for start, end in pairwise(moments))
