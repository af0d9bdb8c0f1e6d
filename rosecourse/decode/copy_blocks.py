"""Part `copy_blocks`: copy-on-write."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import EngineConfig
from ..kv.blocks import Copy, KVBlockManager
from ..kv.buffers import index_tensor
from ..models.shape import Model


class CopyBlocks:
    """All copies of a step together: one indexed copy of K and one of V, for all sessions and layers.

    No block is the destination of two copies, or the destination of one and the source of another: their order is free.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, copies: Sequence[Copy]) -> None:
        """Copy K and V of all layers, before anybody writes into the copies."""
        if not copies:
            return
        sources, destinations = index_tensor(list(zip(*copies, strict=True)), self.kv.device)
        for cache in (self.kv.keys, self.kv.values):
            cache[:, destinations] = cache[:, sources]
