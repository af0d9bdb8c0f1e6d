"""Part `kv_append`: put the new token's K and V into the cache."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...config import EngineConfig
from ...kv.blocks import KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession


class KVAppend:
    """One `append_token` for every layer and every session: L x B calls a step."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        for b, block_ids in enumerate(block_ids_list):
            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])
