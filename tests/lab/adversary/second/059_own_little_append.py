"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
Sessions that begin a block are still written one by one, by a method of its own in place of `append_token`.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        inside, begin, copy = [], [], []
        infos: list[KVBlockInfo] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                begin.append(b)
            elif info.owners > 1:
                copy.append(b)
            else:
                inside.append(b)
                infos.append(info)
        if inside:
            self.write(layer_idx, inside, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in begin:
            self.begin_block(layer_idx, block_ids_list[b], key_new[b], value_new[b])
        for b in copy:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def begin_block(self, layer_idx: int, block_ids: list[int], key: Tensor, value: Tensor) -> None:
        """A new block with its first token, in slot 0. It has one owner, so nothing needs to be asked."""
        start = 0
        if block_ids:
            full = self.kv.info(block_ids[-1])
            start = full.start + full.length
        block_ids.append(self.kv.allocate_block(layer_idx, start))
        info = self.kv.info(block_ids[-1])
        self.kv.k_layers[layer_idx][info.block_index, :, 0].copy_(key)
        self.kv.v_layers[layer_idx][info.block_index, :, 0].copy_(value)
        info.length = 1

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        idx_t = index_tensor(batch_idx, device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        pos_t = index_tensor([info.length for info in infos], device)
        k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        v_layer[blk_t, :, pos_t] = value_new.index_select(0, idx_t)
