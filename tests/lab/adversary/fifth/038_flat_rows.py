"""lesson: 038
verdict: right
cause: right
shows: cpu
A layer's cache is seen as one long list of rows of D numbers, and a token's H rows are written by index_copy_, once for K and once for V.
Sessions without a free slot of their own go to append_token.
"""
from itertools import chain

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        _, self.H, self.S, self.D = kv.k_layers[0].shape
        self.head_starts = torch.arange(self.H, device=kv.device) * self.S  # [H]
        self.flat_k = [layer.view(-1, self.D) for layer in kv.k_layers]
        self.flat_v = [layer.view(-1, self.D) for layer in kv.v_layers]

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def first_row(self, info):
        """The row of head 0 of a block's next slot."""
        return info.block_index * self.H * self.S + info.length

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        last = {b: self.kv.info(ids[-1]) for b, ids in enumerate(block_ids_list) if ids}
        ready = {b: i for b, i in last.items() if i.owners == 1 and i.length < self.S}
        if ready:
            numbers = index_tensor([list(ready), list(map(self.first_row, ready.values()))], self.kv.device)
            rows = (numbers[1][:, None] + self.head_starts).flatten()
            for flat, new in ((self.flat_k, key_new), (self.flat_v, value_new)):
                flat[layer_idx].index_copy_(0, rows, new.index_select(0, numbers[0]).view(-1, self.D))
            for info in ready.values():
                info.length += 1
        for b in chain(b for b in range(len(block_ids_list)) if b not in ready):
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
