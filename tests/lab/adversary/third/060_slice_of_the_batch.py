"""lesson: 060
verdict: right
cause: right
shows: cpu
A run of neighbouring rows is a slice of K and V, the whole batch among them; an index only where there are gaps.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor


class Row(NamedTuple):
    b: int
    info: KVBlockInfo


class MyKVAppend:
    def __init__(self, model, kv, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys, values) -> None:
        for layer_idx, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], k, v)

    def append_token_batch(self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor):
        own: list[Row] = []
        copies: list[int] = []
        for b, ids in enumerate(block_ids_list):
            info = self._room(layer_idx, ids)
            if info.owners == 1:
                own.append(Row(b, info))
            else:
                copies.append(b)
        if own:
            self._store(layer_idx, own, key_new, value_new)
        for _, info in own:
            info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def _room(self, layer_idx: int, ids: list[int]) -> KVBlockInfo:
        if ids:
            last = self.kv.info(ids[-1])
            if last.length < self.kv.block_size:
                return last
            begin = last.start + self.kv.block_size
        else:
            begin = 0
        ids.append(self.kv.allocate_block(layer_idx, begin))
        return self.kv.info(ids[-1])

    def _store(self, layer_idx: int, own: list[Row], key_new: Tensor, value_new: Tensor) -> None:
        lo, hi = own[0].b, own[-1].b + 1
        if hi - lo == len(own):  # rows ascend, so there are no gaps
            take = slice(lo, hi)
        else:
            take = index_tensor([row.b for row in own], self.kv.device)
        blocks = index_tensor([row.info.block_index for row in own], self.kv.device)
        slots = {row.info.length for row in own}
        if len(slots) == 1:
            (slot,) = slots
            self.kv.k_layers[layer_idx].select(2, slot)[blocks] = key_new[take]
            self.kv.v_layers[layer_idx].select(2, slot)[blocks] = value_new[take]
        else:
            where = blocks, index_tensor([row.info.length for row in own], self.kv.device)
            self.kv.k_layers[layer_idx].transpose(1, 2)[where] = key_new[take]
            self.kv.v_layers[layer_idx].transpose(1, 2)[where] = value_new[take]
