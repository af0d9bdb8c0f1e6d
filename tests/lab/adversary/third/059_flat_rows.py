"""lesson: 059
verdict: right
cause: right
shows: cpu
First room for everybody, then the questions: K and V of a layer are seen as one long list of rows, and `index_copy_`
writes all heads of the sessions that have their last block to themselves. Only copies go to `append_token`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockInfo, KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model


def with_room(kv: KVBlockManager, layer_idx: int, tables: Iterable[list[int]]) -> Iterator[KVBlockInfo]:
    """The last block of each list, a new one where there is none or it is full."""
    for table in tables:
        end, full = 0, True
        if table:
            last = kv.info(table[-1])
            end, full = last.start + last.length, last.length == kv.block_size
        if full:
            table.append(kv.allocate_block(layer_idx, end))
        yield kv.info(table[-1])


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.heads = kv.k_layers[0].shape[1]
        self.steps = torch.arange(self.heads, device=kv.device) * kv.block_size

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx, (key_new, value_new) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [table[layer_idx] for table in tables], key_new, value_new)

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        last = list(with_room(self.kv, layer_idx, block_ids_list))
        single = [info.owners == 1 for info in last]
        if any(single):
            chosen = [b for b, yes in enumerate(single) if yes]
            first_rows = [last[b].block_index * self.heads * self.kv.block_size + last[b].length for b in chosen]
            idx_t, row_t = index_tensor([chosen, first_rows], self.kv.device)
            rows = (row_t[:, None] + self.steps).view(-1)
            for layers, new in ((self.kv.k_layers, key_new), (self.kv.v_layers, value_new)):
                layers[layer_idx].flatten(0, 2).index_copy_(0, rows, new.index_select(0, idx_t).flatten(0, 1))
            for b in chosen:
                last[b].length += 1
        for b, yes in enumerate(single):
            if not yes:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
