"""lesson: 038
verdict: wrong
cause: state-kept
shows: cpu
Caches the flat views of the layers in a dict of the module by layer number: a second engine writes into the first
engine's cache.
"""

import torch

VIEWS: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def flat(kv, layer):
    if layer not in VIEWS:
        VIEWS[layer] = kv.k_layers[layer].flatten(0, 2), kv.v_layers[layer].flatten(0, 2)
    return VIEWS[layer]


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.heads = torch.arange(model.shape.num_kv_heads, device=kv.device)

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.layer(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def layer(self, layer, tables, k, v):
        fast, at, slow = [], [], []
        for b, t in enumerate(tables):
            i = self.kv.info(t[-1]) if t else None
            if i is None or i.length == self.kv.block_size or i.owners > 1:
                slow.append(b)
                continue
            fast.append(b)
            at.append((i.block_index * len(self.heads), i.length))
            i.length += 1
        if fast:
            base, slot = torch.tensor(at, device=self.kv.device)[:, :, None].unbind(1)
            rows = (base + self.heads) * self.kv.block_size + slot
            k_rows, v_rows = flat(self.kv, layer)
            k_rows[rows] = k[fast]
            v_rows[rows] = v[fast]
        for b in slow:
            self.kv.append_token(layer, tables[b], k[b], v[b])
