"""lesson: 060
verdict: wrong
cause: rollover-missed
shows: cpu
Begins the next block as soon as one is full, a step too early: a session that ends there takes a block for nothing,
and the pool or the table can be too small for it.
"""

from __future__ import annotations

from torch import Tensor

from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """After each step every session has a last block with a free slot, so the scan has one case less."""

    def __init__(self, model, kv: KVBlockManager, config) -> None:
        self.kv = kv

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def begin_block(self, layer_idx: int, ids: list[int]) -> None:
        last = self.kv.info(ids[-1]) if ids else None
        if last is None or last.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer_idx, last.start + last.length if last else 0))

    def append_token_batch(self, layer_idx: int, block_ids_list, key_new: Tensor, value_new: Tensor) -> None:
        for ids in block_ids_list:
            self.begin_block(layer_idx, ids)  # only for a session that comes from the prefill
        infos = [self.kv.info(ids[-1]) for ids in block_ids_list]
        rows = [b for b, info in enumerate(infos) if info.owners == 1]
        if rows:
            own = [infos[b] for b in rows]
            k, v = key_new, value_new
            if len(rows) != len(infos):
                idx = index_tensor(rows, self.kv.device)
                k, v = k.index_select(0, idx), v.index_select(0, idx)
            blocks = index_tensor([info.block_index for info in own], self.kv.device)
            slot = own[0].length
            if any(info.length != slot for info in own):
                slot = index_tensor([info.length for info in own], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slot] = k
            self.kv.v_layers[layer_idx][blocks, :, slot] = v
            for info in own:
                info.length += 1
        done = set(rows)
        for b, ids in enumerate(block_ids_list):
            if b not in done:
                self.kv.append_token(layer_idx, ids, key_new[b], value_new[b])
            self.begin_block(layer_idx, ids)
