"""lesson: 059
verdict: wrong
cause: cow-partial
shows: cpu
Also brings the copies into the batch, and makes them after the tokens are written: whole blocks of the original go over
the new block, and over the token that has just been put there.
"""

import torch


class MyKVAppend:
    """No slow path at all: rollovers and copies are planned in the scan."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            infos, copies = [], []
            for session in sessions:
                ids = session.block_ids_per_layer[layer]
                infos.append(self.target(layer, ids, copies))
            at = torch.tensor([(i.block_index, i.length) for i in infos], device=self.kv.device)
            self.kv.k_layers[layer][at[:, 0], :, at[:, 1]] = keys[layer]
            self.kv.v_layers[layer][at[:, 0], :, at[:, 1]] = values[layer]
            if copies:
                old, new = torch.tensor(copies, device=self.kv.device).T
                self.kv.k_layers[layer][new] = self.kv.k_layers[layer][old]
                self.kv.v_layers[layer][new] = self.kv.v_layers[layer][old]
            for info in infos:
                info.length += 1

    def target(self, layer, ids, copies):
        last = self.kv.info(ids[-1]) if ids else None
        if last is None or last.length == self.kv.block_size:
            ids.append(self.kv.allocate_block(layer, last.start + last.length if last else 0))
        elif last.owners > 1:
            ids[-1] = self.kv.allocate_block(layer, last.start)
            copies.append((last.block_index, self.kv.block_index(ids[-1])))
            self.kv.info(ids[-1]).length = last.length
            last.owners -= 1
        return self.kv.info(ids[-1])
