"""lesson: 038
verdict: wrong
cause: tampering
shows: cpu
Replaces `append_token` of the cache that it is given by one that queues simple tokens, and flushes the queue in one
store. Whoever else calls the cache's `append_token` has a token that is only queued.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.one_by_one = kv.append_token
        self.queue = []
        kv.append_token = self.queued

    def queued(self, layer_idx, block_ids, key_new, value_new):
        info = self.kv.info(block_ids[-1]) if block_ids else None
        if info is None or info.length == self.kv.block_size or info.owners > 1:
            self.one_by_one(layer_idx, block_ids, key_new, value_new)
        else:
            self.queue.append((info, key_new, value_new))

    def flush(self, layer_idx):
        if not self.queue:
            return
        infos, ks, vs = zip(*self.queue, strict=True)
        self.queue.clear()
        blk, pos = torch.tensor([[i.block_index, i.length] for i in infos], device=self.kv.device).unbind(-1)
        self.kv.k_layers[layer_idx][blk, :, pos] = torch.stack(ks)
        self.kv.v_layers[layer_idx][blk, :, pos] = torch.stack(vs)
        for i in infos:
            i.length += 1

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer_idx]
                self.kv.append_token(layer_idx, ids, keys[layer_idx][b], values[layer_idx][b])
            self.flush(layer_idx)
