"""lesson: 059
verdict: right
cause: right
shows: cpu
The scan is a generator, the store an `index_put_` into the caches with slots before heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        # [num_blocks, block_size, H, D]: a block and a slot name the row of a token
        self.k_tokens = [layer.transpose(1, 2) for layer in kv.k_layers]
        self.v_tokens = [layer.transpose(1, 2) for layer in kv.v_layers]

    def __call__(
        self, sessions: Sequence[InferenceSession], keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> None:
        per_layer = zip(*(session.block_ids_per_layer for session in sessions), strict=True)
        for layer_idx, tables in enumerate(per_layer):
            self.append_token_batch(layer_idx, list(tables), keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: torch.Tensor, value_new: torch.Tensor
    ) -> None:
        last = list(self.with_room(layer_idx, block_ids_list))
        alone = [b for b, info in enumerate(last) if info.owners == 1]
        shared = [b for b, info in enumerate(last) if info.owners > 1]
        if alone:
            where = [alone, [last[b].block_index for b in alone], [last[b].length for b in alone]]
            rows, *place = index_tensor(where, self.kv.device).unbind()
            self.k_tokens[layer_idx].index_put_(tuple(place), key_new.index_select(0, rows))
            self.v_tokens[layer_idx].index_put_(tuple(place), value_new.index_select(0, rows))
        for b in alone:
            last[b].length += 1
        for b in shared:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def with_room(self, layer_idx: int, tables: list[list[int]]) -> Iterator[KVBlockInfo]:
        """Of each table the last block, which has a free slot: a new one where there was none."""
        for table in tables:
            end = 0
            if table:
                last = self.kv.info(table[-1])
                if last.length < self.kv.block_size:
                    yield last
                    continue
                end = last.start + last.length
            table.append(self.kv.allocate_block(layer_idx, end))
            yield self.kv.info(table[-1])
