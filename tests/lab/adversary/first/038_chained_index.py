"""lesson: 038
verdict: wrong
cause: nothing-written
shows: cpu
Indexes twice, `layer[blocks][rows, :, slots] = ...`: the first index makes a copy, and the store goes into the copy.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            ids = [s.block_ids_per_layer[layer] for s in sessions]
            self.append_token_batch(layer, ids, keys[layer], values[layer])

    def is_simple(self, ids):
        if not ids:
            return False
        info = self.kv.info(ids[-1])
        return info.length < self.kv.block_size and info.owners == 1

    def append_token_batch(self, layer, block_ids_list, key_new, value_new):
        simple = [b for b, ids in enumerate(block_ids_list) if self.is_simple(ids)]
        rest = [b for b, ids in enumerate(block_ids_list) if b not in set(simple)]
        if simple:
            infos = [self.kv.info(block_ids_list[b][-1]) for b in simple]
            blocks = torch.tensor([i.block_index for i in infos], device=self.kv.device)
            slots = torch.tensor([i.length for i in infos], device=self.kv.device)
            rows = torch.arange(len(simple), device=self.kv.device)
            self.kv.k_layers[layer][blocks][rows, :, slots] = key_new[simple]
            self.kv.v_layers[layer][blocks][rows, :, slots] = value_new[simple]
            for i in infos:
                i.length += 1
        for b in rest:
            self.kv.append_token(layer, block_ids_list[b], key_new[b], value_new[b])
