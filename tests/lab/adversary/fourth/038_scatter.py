"""lesson: 038
verdict: right
cause: right
shows: both
Every number has its address: one flat `scatter_` for K and one for V, with the addresses worked out on the device.
"""

import torch

from rosecourse.kv.buffers import index_tensor


def addresses(blocks, slots, shape):
    _, H, S, D = shape
    h = torch.arange(H, device=blocks.device)[None, :, None]
    d = torch.arange(D, device=blocks.device)[None, None, :]
    return ((blocks[:, None, None] * H + h) * S + slots[:, None, None]) * D + d  # [n, H, D]


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.flat = [(k.view(-1), v.view(-1)) for k, v in zip(kv.k_layers, kv.v_layers)]

    def __call__(self, sessions, keys, values):
        each = zip(*(s.block_ids_per_layer for s in sessions), strict=True)
        for layer_idx, tables in enumerate(each):
            self.append(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append(self, layer_idx, tables, key_new, value_new):
        kv, easy, hard = self.kv, [], []
        for b, ids in enumerate(tables):
            info = kv.info(ids[-1]) if ids else None
            if info and info.owners == 1 and info.length < kv.block_size:
                easy.append((b, info))
            else:
                hard.append(b)
        if easy:
            table = [[b, i.block_index, i.length] for b, i in easy]
            rows, blocks, slots = index_tensor(table, kv.device).T
            where = addresses(blocks, slots, kv.k_layers[layer_idx].shape).reshape(-1)
            k_flat, v_flat = self.flat[layer_idx]
            k_flat.scatter_(0, where, key_new[rows].reshape(-1))
            v_flat.scatter_(0, where, value_new[rows].reshape(-1))
            for _, i in easy:
                i.length += 1
        for b in hard:
            kv.append_token(layer_idx, tables[b], key_new[b], value_new[b])
