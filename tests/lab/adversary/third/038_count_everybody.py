"""lesson: 038
verdict: wrong
cause: books-wrong
shows: cpu
Raises the length of every session's last block at the end, also of those that append_token has counted already.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """One indexed store for K and one for V."""

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
        rows, blocks, slots = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])
            else:
                rows.append(b)
                blocks.append(info.block_index)
                slots.append(info.length)
        if rows:
            idx_t = index_tensor(rows, self.kv.device)
            blk_t = index_tensor(blocks, self.kv.device)
            pos_t = index_tensor(slots, self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
        # every session has one token more now
        for block_ids in block_ids_list:
            info = self.kv.info(block_ids[-1])
            info.length = min(info.length + 1, self.kv.block_size)
