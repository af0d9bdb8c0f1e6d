"""How the engines of a comparison are held: all of them at once, or one at a time where memory is short."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from ..config import EngineConfig
from ..decode.runner import free_memory
from ..engine.engine import InferenceEngine
from ..kv.buffers import host_memory
from ..models.shape import Model
from .floor import kv_bytes_per_position

Make = Callable[[], InferenceEngine]
Use = Callable[[InferenceEngine], object]
Lent = Callable[[], AbstractContextManager[InferenceEngine]]  # an engine for as long as one run takes
Holding = Callable[[Make, Use], Lent]

SHARE = 0.5  # of the memory that all caches may fill: the rest is for graphs, copies of weights and everything else


def kept(engine: InferenceEngine) -> Lent:
    """An engine that is there already, lent for every run."""
    return lambda: nullcontext(engine)


def all_kept(make: Make, warm_up: Use) -> Lent:
    """The engine is made now, and lent for every run."""
    return kept(make())


def one_at_a_time(make: Make, warm_up: Use) -> Lent:
    """The engine is made for each run and used once to warm it up; no two are there at the same time.

    A run so takes about twice as long.
    """

    @contextmanager
    def lent() -> Iterator[InferenceEngine]:
        _give_back()
        engine = make()
        warm_up(engine)
        yield engine

    return lent


def _give_back() -> None:
    """The memory of engines that nobody has any more: whoever borrowed the last one had it to the end of its turn."""
    gc.collect()  # an engine and its parts refer to each other
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # what a graph takes comes from the device itself


def holding_for(model: Model, config: EngineConfig, count: int) -> Holding:
    """How to hold `count` engines of this configuration: all of them, unless their caches are too large together."""
    return all_kept if count * cache_bytes(model, config) <= SHARE * _room(model.device) else one_at_a_time


def cache_bytes(model: Model, config: EngineConfig) -> int:
    """Bytes of the K and V that an engine of this configuration has room for."""
    longest = config.max_seq_len or model.shape.context
    blocks = config.num_blocks or config.max_batch_size * config.blocks_for(longest)
    return blocks * config.block_size * kv_bytes_per_position(model.shape, model.dtype)


def _room(device: torch.device) -> float:
    """Bytes that a GPU has left, or that the machine has in all, which says more than what is free at the moment."""
    return free_memory(device) if device.type == "cuda" else host_memory()
