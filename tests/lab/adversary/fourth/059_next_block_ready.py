"""lesson: 059
verdict: wrong
cause: rollover-missed
shows: cpu
Begins the next block in the step that fills the last one, so that it is ready for the next step: one step too early. A
session holds a block that it may never use, and a small pool runs out though there is room.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Full blocks are followed by an empty one before anybody needs it, so the scan finds room everywhere."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.room(layer_idx, block_ids)  # a prompt may have filled its last block
            if info.owners > 1:
                slow_batch_idx.append(b)
            else:
                fast_batch_idx.append(b)
                fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for b, info in zip(fast_batch_idx, fast_infos):
                info.length += 1
                self.room(layer_idx, block_ids_list[b])
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def room(self, layer_idx: int, block_ids: list[int]) -> KVBlockInfo:
        """The last block, which is not full: a new one if need be."""
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None or info.length == self.kv.block_size:
            start = info.start + info.length if info else 0
            block_ids.append(self.kv.allocate_block(layer_idx, start))
        return self.kv.info(block_ids[-1])

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
