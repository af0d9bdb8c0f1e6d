"""lesson: 060
verdict: wrong
cause: values-changed
shows: cpu
K and V are selected into one and the same kept buffer. Both names mean that buffer, so where part of the batch is
written, the values of V are stored as K as well.
"""

import torch

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Whole batches as they are; of parts the rows are picked into memory that is there already."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        cache = kv.k_layers[0]
        self.picked = torch.empty(
            config.max_batch_size, cache.shape[1], cache.shape[3], dtype=cache.dtype, device=kv.device
        )

    def pick(self, new: Tensor, idx_t: Tensor) -> Tensor:
        picked = self.picked[: len(idx_t)]
        torch.index_select(new, 0, idx_t, out=picked)
        return picked

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                # A full block is never written again: it need not be copied, even if others own it too.
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
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
        device = self.kv.device
        if len(batch_idx) != len(key_new):
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = self.pick(key_new, idx_t), self.pick(value_new, idx_t)
        blk_t = index_tensor([info.block_index for info in infos], device)
        positions = [info.length for info in infos]
        same = min(positions) == max(positions)
        slots = positions[0] if same else index_tensor(positions, device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
