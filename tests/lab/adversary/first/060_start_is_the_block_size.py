"""lesson: 060
verdict: wrong
cause: books-wrong
shows: cpu
The start of a new block is the length of the one before, which is right for the second block of a session and for
no later one.
"""

import torch

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.full = kv.block_size

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], k, v)

    def tail(self, layer, ids):
        """The block that the next token goes to; a new one if the last is full."""
        last = self.kv.info(ids[-1]) if ids else None
        if last and last.length < self.full:
            return last
        ids.append(self.kv.allocate_block(layer, last.length if last else 0))
        return self.kv.info(ids[-1])

    def append_token_batch(self, layer, tables, k, v):
        infos = [self.tail(layer, ids) for ids in tables]
        alone = [b for b, i in enumerate(infos) if i.owners < 2]
        shared = [b for b, i in enumerate(infos) if i.owners > 1]
        dev = self.kv.device
        if alone:
            blk = index_tensor([infos[b].block_index for b in alone], dev)
            pos = [infos[b].length for b in alone]
            level = pos.count(pos[0]) == len(pos)
            sel = index_tensor(alone, dev) if shared else None
            for cache, new in ((self.kv.k_layers[layer], k), (self.kv.v_layers[layer], v)):
                rows = new if sel is None else torch.index_select(new, 0, sel)
                if level:
                    cache[:, :, pos[0]].index_put_((blk,), rows)
                else:
                    cache.transpose(1, 2).index_put_((blk, index_tensor(pos, dev)), rows)
            for b in alone:
                infos[b].length += 1
        for b in shared:
            self.kv.append_token(layer, tables[b], k[b], v[b])
