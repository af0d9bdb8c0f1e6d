"""lesson: 038
verdict: wrong
cause: cow-missed
shows: cpu
Takes only blocks of the prefix cache for shared ones, so a forked session's partly filled block is written without a copy.
"""

from __future__ import annotations

from typing import NamedTuple

from rosecourse.lessons.l035_blocks import KVBlockInfo
from rosecourse.kv.buffers import index_tensor


class Write(NamedTuple):
    row: int
    info: KVBlockInfo


def shared(info: KVBlockInfo) -> bool:
    """Other sessions read it: it came out of the prefix cache and somebody else holds it too."""
    return info.cached and info.owners > 1


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], keys[layer_idx], values[layer_idx]
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        writes: list[Write] = []
        others: list[int] = []
        for row, ids in enumerate(block_ids_list):
            info = self.kv.info(ids[-1]) if ids else None
            if info and info.length < self.kv.block_size and not shared(info):
                writes.append(Write(row, info))
            else:
                others.append(row)
        if writes:
            rows, blocks, slots = index_tensor(
                list(zip(*((w.row, w.info.block_index, w.info.length) for w in writes))), self.kv.device
            )
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
        for w in writes:
            w.info.length += 1
        for row in others:
            self.kv.append_token(layer_idx, block_ids_list[row], key_new[row], value_new[row])
