"""lesson: 059
verdict: wrong
cause: rollover-missed
shows: cpu
The first session is asked whether its block is full, and the answer is taken for all: wrong where lengths differ.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """One rollover for the whole batch."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def roll_over(self, layer_idx: int, block_ids_list: list[list[int]]) -> None:
        """A boundary step: everybody gets a new block."""
        for block_ids in block_ids_list:
            last = self.kv.info(block_ids[-1]) if block_ids else None
            start = last.start + last.length if last else 0
            block_ids.append(self.kv.allocate_block(layer_idx, start))

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        first = block_ids_list[0]
        if not first or self.kv.info(first[-1]).length == self.kv.block_size:
            self.roll_over(layer_idx, block_ids_list)
        infos = [self.kv.info(block_ids[-1]) for block_ids in block_ids_list]
        fast = [b for b, info in enumerate(infos) if info.owners == 1]
        slow = [b for b, info in enumerate(infos) if info.owners > 1]
        if fast:
            self.write(layer_idx, fast, [infos[b] for b in fast], key_new, value_new)
            for b in fast:
                infos[b].length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        idx_t = index_tensor(batch_idx, device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        pos_t = index_tensor([info.length % self.kv.block_size for info in infos], device)
        k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        v_layer[blk_t, :, pos_t] = value_new.index_select(0, idx_t)
