"""Part `copy_blocks`: copy-on-write."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import EngineConfig
from ...kv.one_table import Copy, KVBlockManager
from ...models.shape import Model


class CopyBlocks:
    """One copy after another: two operations for each session that writes into a block that others own too."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, copies: Sequence[Copy]) -> None:
        """Copy K and V of all layers, before anybody writes into the copies."""
        for source, destination in copies:
            for cache in (self.kv.keys, self.kv.values):
                cache[:, destination] = cache[:, source]
