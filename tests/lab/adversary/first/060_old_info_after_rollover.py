"""lesson: 060
verdict: wrong
cause: wrong-block
shows: cpu
Begins the new block but does not look it up again: the row goes to slot 0 of the old, full block, and the new one
stays empty.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Put the new token's K and V into the cache."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        size, device = self.kv.block_size, self.kv.device
        fast, blocks, slots, slow = [], [], [], []
        for b, block_ids in enumerate(block_ids_list):
            if not block_ids:
                block_ids.append(self.kv.allocate_block(layer_idx))
            info = self.kv.info(block_ids[-1])
            if info.length == size:
                block_ids.append(self.kv.allocate_block(layer_idx, info.start + size))
            elif info.owners > 1:
                slow.append(b)
                continue
            fast.append(b)
            blocks.append(info.block_index)
            slots.append(info.length % size)  # a full block wraps around to slot 0
        if fast:
            whole = len(fast) == len(block_ids_list)
            idx = None if whole else index_tensor(fast, device)
            at = slots[0] if slots == [slots[0]] * len(slots) else index_tensor(slots, device)
            blk = index_tensor(blocks, device)
            self.kv.k_layers[layer_idx][blk, :, at] = key_new if whole else key_new.index_select(0, idx)
            self.kv.v_layers[layer_idx][blk, :, at] = value_new if whole else value_new.index_select(0, idx)
            for b in fast:
                self.kv.info(block_ids_list[b][-1]).length += 1
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
