"""lesson: 060
verdict: wrong
cause: values-changed
shows: cpu
Adds the rows with index_add_, in the belief that an unwritten slot holds zero. The pool is not cleared, and a block
that comes back holds old values.
"""

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
        infos = [self.tail(layer, ids) for ids in tables]
        own = [b for b in range(len(tables)) if infos[b].owners == 1]
        if own:
            self.put(layer, [infos[b] for b in own], *self.rows(own, k, v))
        for b, ids in enumerate(tables):
            if b in own:
                infos[b].length += 1
            else:
                self.kv.append_token(layer, ids, k[b], v[b])

    def rows(self, own, k, v):
        if len(own) == len(k):
            return k, v
        at = index_tensor(own, self.kv.device)
        return k.index_select(0, at), v.index_select(0, at)

    def put(self, layer, infos, k, v):
        blk = index_tensor([i.block_index for i in infos], self.kv.device)
        at = [i.length for i in infos]
        for cache, new in ((self.kv.k_layers[layer], k), (self.kv.v_layers[layer], v)):
            if len(set(at)) == 1:
                cache.select(2, at[0]).index_add_(0, blk, new)  # one in-place op, no gather
            else:
                cache[blk, :, index_tensor(at, self.kv.device)] = new
