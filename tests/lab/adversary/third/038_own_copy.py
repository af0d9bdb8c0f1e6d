"""lesson: 038
verdict: wrong
cause: cow-partial
shows: cpu
Makes the private copy of a shared block itself and copies the slots 0 to length - 2: the newest old token is missing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """The copy is made in the scan, so that the store takes the whole batch except for those without a slot."""

    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def own(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The last block, for this session alone."""
        shared = self.kv.info(block_ids[-1])
        if shared.owners == 1:
            return shared
        copy_id = self.kv.allocate_block(layer_idx, shared.start)
        mine = self.kv.info(copy_id)
        last = shared.length - 1
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[mine.block_index, :, :last].copy_(cache[shared.block_index, :, :last])
        mine.length = shared.length
        shared.owners -= 1
        block_ids[-1] = copy_id
        return mine

    def append_token_batch(self, layer_idx: int, block_ids_list, key_new: Tensor, value_new: Tensor) -> None:
        fast: dict[int, KVBlockInfo] = {}
        slow: list[int] = []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids or self.kv.info(block_ids[-1]).length == self.kv.block_size:
                slow.append(b)
            else:
                fast[b] = self.own(layer_idx, block_ids)
        if fast:
            idx_t: torch.Tensor = index_tensor([*fast], self.kv.device)
            blk_t = index_tensor([info.block_index for info in fast.values()], self.kv.device)
            pos_t = index_tensor([info.length for info in fast.values()], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in fast.values():
                info.length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
