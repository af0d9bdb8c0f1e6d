"""lesson: 038
verdict: wrong
cause: rollover-missed
shows: cpu
Takes the slot as `length % block_size` and forgets that a full block needs a successor: the token goes over slot 0 of
the full block, as in a ring.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        kv = self.kv
        for layer in range(kv.num_layers):
            rows, blocks, slots = [], [], []
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                if not ids or kv.info(ids[-1]).owners > 1:
                    kv.append_token(layer, ids, keys[layer][b], values[layer][b])
                    continue
                info = kv.info(ids[-1])
                rows.append(b)
                blocks.append(info.block_index)
                slots.append(info.length % kv.block_size)
                info.length = info.length % kv.block_size + 1
            if rows:
                r, blk, pos = (torch.tensor(x, device=kv.device) for x in (rows, blocks, slots))
                kv.k_layers[layer][blk, :, pos] = keys[layer][r]
                kv.v_layers[layer][blk, :, pos] = values[layer][r]
