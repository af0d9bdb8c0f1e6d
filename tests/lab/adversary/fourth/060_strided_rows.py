"""lesson: 060
verdict: wrong
cause: wrong-block
shows: cpu
With a constant position it views the layer as rows [num_blocks * H, D] of that slot, and finds the rows of a block at
`block * block_size` instead of `block * H`: right only if a block has as many slots as heads.
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
    """A constant position is a stride: the slots of it are a view, and the blocks its only index."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.heads = torch.arange(kv.k_layers[0].shape[1], device=kv.device)

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
        """Write the K and V of the sessions batch_idx into the next slot of their blocks."""
        device, bs, D = self.kv.device, self.kv.block_size, key_new.shape[-1]
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        blk_t = index_tensor([info.block_index for info in infos], device)
        if len(batch_idx) != len(key_new):
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        positions = [info.length for info in infos]
        pos0 = positions[0]
        if positions.count(pos0) == len(positions):
            rows = blk_t[:, None] * bs + self.heads  # [n, H]
            k_layer.view(-1, D)[pos0::bs][rows] = key_new
            v_layer.view(-1, D)[pos0::bs][rows] = value_new
        else:
            pos_t = index_tensor(positions, device)
            k_layer[blk_t, :, pos_t] = key_new
            v_layer[blk_t, :, pos_t] = value_new
