"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
The lists of the slow path are numbered from 0, so a slow session gets the K and V of the first rows of the batch.
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
        batch_idx: list[int] = []
        infos: list[KVBlockInfo] = []
        slow_lists: list[list[int]] = []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size or info.owners > 1:
                slow_lists.append(block_ids)
            else:
                batch_idx.append(b)
                infos.append(info)
        if batch_idx:
            self.write(layer_idx, batch_idx, infos, key_new, value_new)
        for b, block_ids in enumerate(slow_lists):
            self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        device = self.kv.device
        rows = index_tensor(batch_idx, device)
        blocks = index_tensor([info.block_index for info in infos], device)
        slots = index_tensor([info.length for info in infos], device)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
        for info in infos:
            info.length += 1
