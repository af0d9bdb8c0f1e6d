# wrong, which a CPU can show
from typing import Any, NamedTuple

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class Left(NamedTuple):
    block_ids: list[int]
    value: Tensor
    key: Tensor


class Together(NamedTuple):
    row: int
    info: Any


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx, (key, value) in enumerate(zip(keys, values, strict=True)):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, key, value)

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        left, together = ([], [])
        for row, (ids, key, value) in enumerate(zip(block_ids_list, key_new, value_new, strict=True)):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.owners > 1 or info.length == self.kv.block_size:
                left.append(Left(ids, value, key))
            else:
                together.append(Together(row, info))
        if together:
            rows = index_tensor([t.row for t in together], self.kv.device)
            blocks = index_tensor([t.info.block_index for t in together], self.kv.device)
            slots = index_tensor([t.info.length for t in together], self.kv.device)
            self.kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            self.kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
        for t in together:
            t.info.length += 1
        for special in left:
            self.kv.append_token(layer_idx, *special)
