"""lesson: 038
verdict: wrong
cause: wrong-slot
shows: cpu
Derives the slot from `len(session.token_ids)`, which counts the last token too, whose K and V are not cached yet:
each fast write lands one slot further on, and from the last slot it wraps to slot 0.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.block_size = config.block_size

    def __call__(self, sessions, keys, values):
        positions = [len(s.token_ids) % self.block_size for s in sessions]
        for layer in range(self.kv.num_layers):
            k_layer, v_layer = self.kv.k_layers[layer], self.kv.v_layers[layer]
            rows, blocks, slots, touched, later = [], [], [], [], []
            for row, s in enumerate(sessions):
                ids = s.block_ids_per_layer[layer]
                info = self.kv.info(ids[-1]) if ids else None
                if info and info.length < self.block_size and info.owners == 1:
                    rows.append(row)
                    blocks.append(info.block_index)
                    slots.append(positions[row])
                    touched.append(info)
                else:
                    later.append((ids, row))
            if rows:
                r, b, p = torch.tensor([rows, blocks, slots], device=self.kv.device)
                k_layer[b, :, p] = keys[layer][r]
                v_layer[b, :, p] = values[layer][r]
            for info in touched:
                info.length += 1
            for ids, row in later:
                self.kv.append_token(layer, ids, keys[layer][row], values[layer][row])
