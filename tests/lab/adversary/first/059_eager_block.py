"""lesson: 059
verdict: wrong
cause: rollover-missed
shows: cpu
Begins the next block as soon as the last slot is written, "so that the next step needs no check": a session that ends
there holds an empty block, and a nearly full pool runs dry a step too early.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def ensure(self, layer, ids):
        last = self.kv.info(ids[-1]) if ids else None
        if last is None or last.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, last.start + last.length if last else 0))
        return self.kv.info(ids[-1])

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            tables = [s.block_ids_per_layer[layer] for s in sessions]
            infos = [self.ensure(layer, table) for table in tables]
            alone = [b for b, info in enumerate(infos) if info.owners == 1]
            copies = [b for b, info in enumerate(infos) if info.owners > 1]
            if alone:
                rows, blocks, slots = (
                    torch.tensor(numbers, device=self.kv.device)
                    for numbers in (alone, [infos[b].block_index for b in alone], [infos[b].length for b in alone])
                )
                self.kv.k_layers[layer][blocks, :, slots] = k[rows]
                self.kv.v_layers[layer][blocks, :, slots] = v[rows]
            for b in alone:
                infos[b].length += 1
            for b in copies:
                self.kv.append_token(layer, tables[b], k[b], v[b])
            for table in tables:
                self.ensure(layer, table)
