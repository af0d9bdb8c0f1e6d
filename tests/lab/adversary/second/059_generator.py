"""lesson: 059
verdict: right
cause: right
shows: cpu
A generator makes room and yields each session's last block; the batch goes into a transposed view of the layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


def _next_slots(kv: KVBlockManager, layer_idx: int, tables: list[list[int]]) -> Iterator[tuple[int, KVBlockInfo]]:
    """(row, block with a free slot), in order. Nothing is copied here: the block may be shared."""
    for row, table in enumerate(tables):
        match [kv.info(block_id) for block_id in table[-1:]]:
            case [info] if info.length < kv.block_size:
                pass
            case [full]:
                table.append(kv.allocate_block(layer_idx, full.start + kv.block_size))
            case []:
                table.append(kv.allocate_block(layer_idx))
        yield row, kv.info(table[-1])


class MyKVAppend:
    """Everything but a copy is written with two stores a layer."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        tables_of_layers = zip(*(session.block_ids_per_layer for session in sessions), strict=True)
        for layer_idx, (tables, key_new, value_new) in enumerate(zip(tables_of_layers, keys, values, strict=True)):
            self.append_token_batch(layer_idx, list(tables), key_new, value_new)

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        own: list[tuple[int, KVBlockInfo]] = []
        shared: list[int] = []
        for row, info in _next_slots(self.kv, layer_idx, block_ids_list):
            if info.owners == 1:
                own.append((row, info))
            else:
                shared.append(row)
        if own:
            where = [[row, info.block_index * self.kv.block_size + info.length] for row, info in own]
            self._store(layer_idx, where, key_new, value_new)
        for _, info in own:
            info.length += 1
        for row in shared:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])

    def _store(self, layer_idx: int, where: list[list[int]], key_new: Tensor, value_new: Tensor) -> None:
        """where: for each token its row of key_new, and its slot, counted through all blocks of the layer."""
        rows, slots = index_tensor(where, self.kv.device).unbind(1)
        blocks = torch.div(slots, self.kv.block_size, rounding_mode="floor")
        inside = slots - blocks * self.kv.block_size
        for cache, new in ((self.kv.k_layers[layer_idx], key_new), (self.kv.v_layers[layer_idx], value_new)):
            # [num_blocks, block_size, H, D]: a view, in which the two indices stand side by side.
            cache.transpose(1, 2).index_put_((blocks, inside), new.index_select(0, rows))
