"""lesson: 059
verdict: wrong
cause: wrong-block
shows: cpu
The block numbers are noted before the rollover, the slots after it: a first token goes to slot 0 of the full block.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """The scan notes (row, block, slot) for each session that can be written with the others."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        kv = self.kv
        where: list[tuple[int, int, int]] = []
        copies: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids:
                block_ids.append(kv.allocate_block(layer_idx, 0))
            info = kv.info(block_ids[-1])
            block = info.block_index
            if info.length == kv.block_size:
                block_ids.append(kv.allocate_block(layer_idx, info.start + info.length))
                info = kv.info(block_ids[-1])
            if info.owners > 1:
                copies.append(b)
            else:
                where.append((b, block, info.length))
                info.length += 1
        if where:
            self.write(layer_idx, where, key_new, value_new)
        for b in copies:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx: int, where: list[tuple[int, int, int]], key_new: Tensor, value_new: Tensor) -> None:
        rows, blocks, slots = index_tensor(where, self.kv.device).unbind(1)
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
