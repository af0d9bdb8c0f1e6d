"""lesson: 060
verdict: wrong
cause: state-kept
shows: cpu
The tensor of blocks is kept while no block begins and the batch has the same size, though its sessions may be others.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Identity batch, constant position, and not even the blocks are sent again where they have not changed."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.blocks: list[Tensor | None] = [None] * kv.num_layers

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        rows, infos, copies = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
                self.blocks[layer_idx] = None  # a block is new: what was kept is no longer true
            if info.owners > 1:
                copies.append(b)
                self.blocks[layer_idx] = None
            else:
                rows.append(b)
                infos.append(info)
        if infos:
            self.write(layer_idx, rows, infos, key_new, value_new)
        for info in infos:
            info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
        if copies:
            self.blocks[layer_idx] = None

    def blocks_of(self, layer_idx: int, infos: list[KVBlockInfo]) -> Tensor:
        kept = self.blocks[layer_idx]
        if kept is None or len(kept) != len(infos):
            kept = self.blocks[layer_idx] = index_tensor([info.block_index for info in infos], self.kv.device)
        return kept

    def write(
        self, layer_idx: int, batch_idx: list[int], infos: list[KVBlockInfo], key_new: Tensor, value_new: Tensor
    ) -> None:
        blk_t = self.blocks_of(layer_idx, infos)
        if len(batch_idx) < len(key_new):
            idx_t = index_tensor(batch_idx, self.kv.device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        lengths = [info.length for info in infos]
        slots = lengths[0] if min(lengths) == max(lengths) else index_tensor(lengths, self.kv.device)
        self.kv.k_layers[layer_idx][blk_t, :, slots] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, slots] = value_new
