"""Triton full-batch append: one kernel that is told only blocks and one slot."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..config import EngineConfig
from ..kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from ..kv.buffers import index_tensor
from ..models.shape import Model
from ..request.session import InferenceSession
from .l035_blocks import KVBlockInfo, KVBlockManager


class KVAppend:
    """One `append_token_batch` a layer, in which Triton kernels write large batches."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

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
        device = self.kv.device
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        full_fast = len(batch_idx) == len(key_new)  # the whole batch, in order: nothing to select
        positions = [info.length for info in infos]
        pos0 = positions[0]
        const_pos = all(pos == pos0 for pos in positions)  # the same slot in every block: a number will do
        blk_t = index_tensor([info.block_index for info in infos], device)
        if self.triton and full_fast and const_pos and len(infos) >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos0)
            return
        if self.triton and len(infos) >= self.min_batch:
            idx_t, pos_t = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return
        if not full_fast:
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        slots = pos0 if const_pos else index_tensor(positions, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new
