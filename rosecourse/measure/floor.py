"""The floor of a decode step: the bytes that it must read, over the bytes that this machine copies in a second.

Each step reads every weight once, for whatever batch, and the K and V of every live position once. (That decoding is
bound by memory traffic: Pope et al., "Efficiently scaling transformer inference", 2022.) The floor is a reference and
no proven bound: a kernel that only reads may be somewhat faster than a copy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

from ..models.shape import Model, ModelShape
from .workload import Run, Workload


def weight_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of the weights that a decode step reads, each once.

    The output projection is the token embedding: it counts once, the few rows that the inputs need included. Of the
    position embedding only one row a session is read: it is left out.
    """
    return dtype.itemsize * sum(math.prod(size) for name, size in shape.parameters().items() if name != "wpe.weight")


def kv_bytes_per_position(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of K and V of one token in all layers."""
    return dtype.itemsize * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim


def bytes_per_run(model: Model, workload: Workload, run: Run) -> int:
    """Bytes that the decode steps of a run must read: in each, the weights and K and V of each live position.

    The first token of a request comes from prefill and needs no step. What a step writes, one position a session, is
    left out. Exact for a run without preemptions: what a preempted request computes again, prefill does.
    """
    positions = 0
    for prompt, times in zip(workload.prompts, run.times, strict=True):
        length = len(model.tokenizer.encode(prompt, verbose=False)) if isinstance(prompt, str) else len(prompt)
        positions += sum(range(length, length + len(times.tokens) - 1))
    shape, dtype = model.shape, model.dtype
    return run.stats.decode_steps * weight_bytes(shape, dtype) + positions * kv_bytes_per_position(shape, dtype)


def share_of_floor(num_bytes: float, seconds: float, bandwidth: float) -> float:
    """Floor seconds / measured seconds: 1.0 is as fast as the memory allows.

    num_bytes: of a step or of a run; seconds: how long that took; bandwidth: bytes per second, of `copy_bandwidth`.
    A model that fits into the processor's cache may be above 1.0: its floor is the cache's, not the memory's.
    """
    return num_bytes / bandwidth / seconds


def share_of_runs(runs: Sequence[Run], num_bytes: Sequence[int], bandwidth: float) -> float:
    """The median over runs of floor seconds / seconds spent in decode steps; NaN without runs.

    num_bytes: of each run, such as `bytes_per_run` gives; bandwidth: as in `share_of_floor`.
    """
    pairs = zip(runs, num_bytes, strict=True)
    shares = [share_of_floor(size, run.stats.decode_seconds, bandwidth) for run, size in pairs]
    return median(shares) if shares else math.nan


def copy_bandwidth(device: torch.device | str, num_bytes: int | None = None, budget: float = 0.3) -> float:
    """The most bytes per second, read and written together, that a device's memory moves when it copies.

    num_bytes: size of each of the two buffers, much more than a cache holds; None is 1 GiB on CUDA, 128 MiB on a CPU.
    budget: seconds to measure, about. On a CPU, torch's threads share the copy. Raises torch's out-of-memory error
    where the buffers do not fit.
    """
    device = torch.device(device)
    num_bytes = num_bytes or (2**30 if device.type == "cuda" else 2**27)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    copies = 10 if device.type == "cuda" else 1  # at a time: enough that launching them does not count

    def copy() -> None:
        for _ in range(copies):
            target.copy_(source)
        synchronize()

    copy()  # the first touch of memory is slower
    return 2 * num_bytes * copies / best_seconds(copy, budget)


def best_seconds(work: Callable[[], None], budget: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest time, in seconds, that `work` takes in as many calls as fit into `budget` seconds, at least one."""
    best, begin = math.inf, clock()
    while True:
        start = clock()
        work()
        end = clock()
        best = min(best, end - start)
        if end - begin >= budget:
            return best
