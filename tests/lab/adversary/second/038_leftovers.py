"""lesson: 038
verdict: wrong
cause: wrong-session
shows: cpu
The slow loop takes its block list with `b` but K and V with the running number `i`: row 0 goes to the first slow one.
"""

import torch
from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx: int, block_ids_list: list, key_new: Tensor, value_new: Tensor) -> None:
        kv = self.kv
        fast, slow = [], []
        for b, ids in enumerate(block_ids_list):
            if not ids:
                slow.append(b)
                continue
            last = kv.info(ids[-1])
            (fast if last.owners == 1 and last.length < kv.block_size else slow).append(b)

        if fast:
            infos = [kv.info(block_ids_list[b][-1]) for b in fast]
            rows, blocks, slots = (
                index_tensor(numbers, kv.device)
                for numbers in (fast, [i.block_index for i in infos], [i.length for i in infos])
            )
            for cache, new in ((kv.k_layers[layer_idx], key_new), (kv.v_layers[layer_idx], value_new)):
                cache[blocks, :, slots] = torch.index_select(new, 0, rows)
            for info in infos:
                info.length += 1

        for i, b in enumerate(slow):
            kv.append_token(layer_idx, block_ids_list[b], key_new[i], value_new[i])
