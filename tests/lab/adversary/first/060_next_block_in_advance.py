"""lesson: 060
verdict: wrong
cause: rollover-missed
shows: cpu
Begins the next block in the step that fills the last one, so that the scan finds room in every step. The block
comes a step too early: a session that ends there, or a fork, holds an empty block, and a full pool has none to
give.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
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
        for block_ids in block_ids_list:
            if not block_ids or self.kv.info(block_ids[-1]).length == self.kv.block_size:  # after the prefill only
                self.begin(layer_idx, block_ids)
        infos = [self.kv.info(block_ids[-1]) for block_ids in block_ids_list]
        fast = [b for b, info in enumerate(infos) if info.owners == 1]
        slow = [b for b, info in enumerate(infos) if info.owners > 1]
        if fast:
            self.write(layer_idx, fast, [infos[b] for b in fast], key_new, value_new)
        for b in fast:
            infos[b].length += 1
            if infos[b].length == self.kv.block_size:
                self.begin(layer_idx, block_ids_list[b])
        for b in slow:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def begin(self, layer_idx: int, block_ids: list[int]) -> None:
        block_ids.append(self.kv.allocate_block(layer_idx, len(block_ids) * self.kv.block_size))

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        whole = len(batch_idx) == len(key_new)
        blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
        positions = [info.length for info in infos]
        level = len(set(positions)) == 1
        slots = positions[0] if level else index_tensor(positions, self.kv.device)
        if not whole:
            idx_t = index_tensor(batch_idx, self.kv.device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
