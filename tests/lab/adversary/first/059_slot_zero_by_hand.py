"""lesson: 059
verdict: wrong
cause: goal-missed
shows: cpu
Does not call `append_token` for a session that begins a block, but writes its K and V into slot 0 by hand, in a loop:
at a boundary a layer still makes two stores for each of these sessions.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def open_block(self, layer, ids, key, value):
        start = 0
        if ids:
            full = self.kv.info(ids[-1])
            start = full.start + full.length
        ids.append(self.kv.allocate_block(layer, start))
        info = self.kv.info(ids[-1])
        self.kv.k_layers[layer][info.block_index, :, 0].copy_(key)
        self.kv.v_layers[layer][info.block_index, :, 0].copy_(value)
        info.length = 1

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            batch = []
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                info = self.kv.info(ids[-1]) if ids else None
                if info is None or info.length == self.kv.block_size:
                    self.open_block(layer, ids, keys[layer][b], values[layer][b])
                elif info.owners > 1:
                    self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])
                else:
                    batch.append((b, info.block_index, info.length))
                    info.length += 1
            if batch:
                rows, blocks, slots = torch.tensor(batch, device=self.kv.device).T
                self.kv.k_layers[layer][blocks, :, slots] = keys[layer][rows]
                self.kv.v_layers[layer][blocks, :, slots] = values[layer][rows]
