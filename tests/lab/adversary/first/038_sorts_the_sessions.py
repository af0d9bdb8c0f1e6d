"""lesson: 038
verdict: wrong
cause: inputs-changed
shows: cpu
Sorts the caller's list of sessions in place, simple ones first, so that the batch is a slice. The cache is right, but
the engine then gives the logits of one session to another.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def hard(self, session):
        ids = session.block_ids_per_layer[0]
        if not ids:
            return True
        info = self.kv.info(ids[-1])
        return info.length == self.kv.block_size or info.owners > 1

    def __call__(self, sessions, keys, values):
        row_of = {id(s): b for b, s in enumerate(sessions)}
        sessions.sort(key=self.hard)
        order = torch.tensor([row_of[id(s)] for s in sessions], device=self.kv.device)
        n = sum(not self.hard(s) for s in sessions)
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            k, v = k[order], v[order]
            infos = [self.kv.info(s.block_ids_per_layer[layer][-1]) for s in sessions[:n]]
            if infos:
                blk, pos = torch.tensor([(i.block_index, i.length) for i in infos], device=self.kv.device).T
                self.kv.k_layers[layer][blk, :, pos] = k[:n]
                self.kv.v_layers[layer][blk, :, pos] = v[:n]
            for i in infos:
                i.length += 1
            for b, s in enumerate(sessions[n:], n):
                self.kv.append_token(layer, s.block_ids_per_layer[layer], k[b], v[b])
