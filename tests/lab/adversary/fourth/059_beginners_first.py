"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
Sessions that begin a block do so in the scan and call no `append_token`, but each of them is written there and then,
with a store of its own: at a boundary the batch is broken up as before.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Put the new token's K and V into the cache."""

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
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
                # the new block's first slot is known: no index tensors
                k_layer[info.block_index, :, 0] = key_new[b]
                v_layer[info.block_index, :, 0] = value_new[b]
                info.length = 1
                continue
            if info.owners > 1:
                slow_batch_idx.append(b)  # a copy
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Write the K and V of the sessions batch_idx into the next slot of their blocks."""
        device = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        idx_t = index_tensor(batch_idx, device)
        blk_t = index_tensor([info.block_index for info in infos], device)
        pos_t = index_tensor([info.length for info in infos], device)
        k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)
        v_layer[blk_t, :, pos_t] = value_new.index_select(0, idx_t)
