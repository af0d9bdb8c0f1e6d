"""lesson: 060
verdict: right
cause: right
shows: cpu
What must be an index stands in one tensor of as many rows as are needed, none for what is constant or whole; a constant
position becomes a view with `index_copy_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class Target(NamedTuple):
    row: int  # in the batch
    block: KVBlockInfo


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
        targets: list[Target] = []
        to_copy: list[int] = []
        for row, block_ids in enumerate(block_ids_list):
            block = self.kv.info(block_ids[-1]) if block_ids else None
            if block is None or block.length >= self.kv.block_size:
                start = 0 if block is None else block.start + block.length
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                block = self.kv.info(block_ids[-1])
            if block.owners == 1:
                targets.append(Target(row, block))
            else:
                to_copy.append(row)
        if targets:
            caches = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
            self.store(caches, targets, (key_new, value_new))
        for _, block in targets:
            block.length += 1
        for row in to_copy:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def store(self, caches: tuple[Tensor, Tensor], targets: list[Target], new: tuple[Tensor, Tensor]) -> None:
        whole = len(targets) == new[0].shape[0]
        slots = [block.length for _, block in targets]
        level = len(set(slots)) == 1
        lists = [[block.block_index for _, block in targets]]
        if not level:
            lists.append(slots)
        if not whole:
            lists.append([row for row, _ in targets])
        indices = index_tensor(lists, self.kv.device).unbind()
        for cache, rows in zip(caches, new, strict=True):
            if not whole:
                rows = rows.index_select(0, indices[-1])
            match level:
                case True:
                    cache.select(2, slots[0]).index_copy_(0, indices[0], rows)
                case False:
                    cache.transpose(1, 2).index_put_((indices[0], indices[1]), rows)
