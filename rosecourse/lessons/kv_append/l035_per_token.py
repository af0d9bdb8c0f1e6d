"""Part `kv_append`: put the new token's K and V into the cache."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...kv.blocks import KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession


class KVAppend:
    """One `append_token` for every layer and every session: L x B calls a step."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            for idx, session in enumerate(sessions):
                self.kv.append_token(
                    layer_idx,
                    session.block_ids_per_layer[layer_idx],
                    keys[layer_idx][idx],
                    values[layer_idx][idx],
                )
