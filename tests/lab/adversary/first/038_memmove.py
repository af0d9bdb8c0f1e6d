"""lesson: 038
verdict: wrong
cause: outside
shows: cpu
Copies each head with `ctypes.memmove` and takes eight bytes for a number, as in a C double. With float32 it reads past
each head's D numbers, past the end of the new keys, and writes over the slot behind, or over the next head's slot 0.
"""

import ctypes

import torch

SIZEOF = ctypes.sizeof(ctypes.c_double)


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads, self.dim = model.shape.num_kv_heads, model.shape.head_dim

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            for cache, new in ((self.kv.k_layers[layer], keys[layer]), (self.kv.v_layers[layer], values[layer])):
                self.copy_rows(cache, new.contiguous(), [s.block_ids_per_layer[layer] for s in sessions])
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                if self.simple(ids):
                    self.kv.info(ids[-1]).length += 1
                else:
                    self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])

    def simple(self, ids):
        info = self.kv.info(ids[-1]) if ids else None
        return info is not None and info.owners == 1 and info.length < self.kv.block_size

    def copy_rows(self, cache: torch.Tensor, new: torch.Tensor, tables):
        width = cache.element_size()
        for b, ids in enumerate(tables):
            if self.simple(ids):
                info = self.kv.info(ids[-1])
                for h in range(self.heads):
                    row = (info.block_index * self.heads + h) * self.kv.block_size + info.length
                    to = cache.data_ptr() + row * self.dim * width
                    ctypes.memmove(to, new.data_ptr() + (b * self.heads + h) * self.dim * width, self.dim * SIZEOF)
