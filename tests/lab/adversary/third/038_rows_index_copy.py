"""lesson: 038
verdict: right
cause: right
shows: cpu
The cache as one list of rows [num_blocks * H * block_size, D]: row numbers by broadcasting, then index_copy_.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.H = kv.k_layers[0].shape[1]
        self.head_offset = (torch.arange(self.H) * kv.block_size).to(kv.device)
        self.flat = [[t.view(-1, t.shape[-1]) for t in pair] for pair in zip(kv.k_layers, kv.v_layers)]

    def __call__(self, sessions, keys, values):
        tables = [s.block_ids_per_layer for s in sessions]
        for layer in range(self.kv.num_layers):
            self.append_token_batch(layer, [t[layer] for t in tables], keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, S = self.kv, self.kv.block_size
        todo = {}  # row of the batch -> its block; a dict keeps the order
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info is None or info.length >= S or info.owners != 1:
                # in the scan: once the first of two owners has its copy, the second is alone and may be simple
                kv.append_token(layer_idx, ids, key_new[b], value_new[b])
            else:
                todo[b] = info
        if todo:
            first = index_tensor([i.block_index * self.H * S + i.length for i in todo.values()], kv.device)
            rows = (first.unsqueeze(1) + self.head_offset).flatten()  # n * H, in the order of [n, H]
            if len(todo) < len(block_ids_list):
                sel = index_tensor(list(todo), kv.device)
                key_new, value_new = key_new.index_select(0, sel), value_new.index_select(0, sel)
            k_rows, v_rows = self.flat[layer_idx]
            k_rows.index_copy_(0, rows, key_new.reshape(rows.numel(), -1))
            v_rows.index_copy_(0, rows, value_new.reshape(rows.numel(), -1))
            for i in todo.values():
                i.length += 1
