"""lesson: 059
verdict: wrong
cause: rollover-missed
shows: cpu
Counts slots from one: a block with `block_size - 1` tokens is taken for full, and its last slot is never used.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.last_slot = kv.block_size - 1

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            ready, shared = [], []
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                info = self.kv.info(ids[-1]) if ids else None
                if info is None or info.length >= self.last_slot:
                    start = info.start + info.length if info else 0
                    ids.append(self.kv.allocate_block(layer, start))
                    info = self.kv.info(ids[-1])
                (ready if info.owners == 1 else shared).append((b, ids, info))
            if ready:
                t = torch.tensor([(b, i.block_index, i.length) for b, _, i in ready], device=self.kv.device)
                self.kv.k_layers[layer][t[:, 1], :, t[:, 2]] = keys[layer][t[:, 0]]
                self.kv.v_layers[layer][t[:, 1], :, t[:, 2]] = values[layer][t[:, 0]]
            for _, _, info in ready:
                info.length += 1
            for b, ids, _ in shared:
                self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])
