"""lesson: 038
verdict: wrong
cause: wrong-slot
shows: cpu
Believes that a block is [block_size, H, D]: a token's row is computed as (block * block_size + slot) * H * D, so that
K and V lie scattered over other slots of the right block.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        heads, dim = model.shape.num_kv_heads, model.shape.head_dim
        self.k_rows = [layer.view(-1, heads * dim) for layer in kv.k_layers]
        self.v_rows = [layer.view(-1, heads * dim) for layer in kv.v_layers]

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_layer(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def append_layer(self, layer, tables, k, v):
        fast, slots, slow = [], [], []
        for b, table in enumerate(tables):
            info = self.kv.info(table[-1]) if table else None
            if info is None or info.owners > 1 or info.length == self.kv.block_size:
                slow.append(b)
            else:
                fast.append(b)
                slots.append(info.block_index * self.kv.block_size + info.length)  # vLLM's slot mapping
                info.length += 1
        if fast:
            to, of = index_tensor([slots, fast], self.kv.device)
            self.k_rows[layer].index_copy_(0, to, torch.flatten(k[of], 1))
            self.v_rows[layer].index_copy_(0, to, torch.flatten(v[of], 1))
        for b in slow:
            self.kv.append_token(layer, tables[b], k[b], v[b])
