"""lesson: 060
verdict: right
cause: right
shows: cpu
Right: index_copy_ on the view of a slot where the slots are equal, index_put_ on a transposed view where they are
not; groups by a set.
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
        ids.append(self.kv.allocate_block(layer, len(ids) * self.full))
        return self.kv.info(ids[-1])

    def append_token_batch(self, layer, tables, k, v):
        tails = [self.tail(layer, ids) for ids in tables]
        mine = [b for b, t in enumerate(tails) if t.owners == 1]
        ours = [b for b, t in enumerate(tails) if t.owners != 1]
        if mine:
            at = [tails[b].length for b in mine]
            blk = index_tensor([tails[b].block_index for b in mine], self.kv.device)
            pick = index_tensor(mine, self.kv.device) if ours else None
            pos = index_tensor(at, self.kv.device) if len({*at}) > 1 else None
            for cache, new in ((self.kv.k_layers[layer], k), (self.kv.v_layers[layer], v)):
                src = new if pick is None else torch.index_select(new, 0, pick)
                if pos is None:
                    cache.select(2, at[0]).index_copy_(0, blk, src)
                else:
                    cache.transpose(1, 2).index_put_((blk, pos), src)
        for b in mine:
            tails[b].length += 1
        for b in ours:
            self.kv.append_token(layer, tables[b], k[b], v[b])
