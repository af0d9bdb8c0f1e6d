"""lesson: 060
verdict: wrong
cause: wrong-session
shows: cpu
Replaces the selection by a slice of the first n rows whenever the first session is among those to write. A fork in
the middle of the batch shifts the rows behind it.
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
        tails = [(b, self.tail(layer, ids)) for b, ids in enumerate(tables)]
        mine = [(b, i) for b, i in tails if i.owners == 1]
        rest = [b for b, i in tails if i.owners > 1]
        if mine:
            rows, infos = zip(*mine, strict=True)
            n, dev = len(rows), self.kv.device
            # a view is free, a selection is not: the rows start at 0 almost always
            pick = slice(0, n) if rows[0] == 0 else index_tensor(rows, dev)
            at = [i.length for i in infos]
            at = at[0] if len(set(at)) == 1 else index_tensor(at, dev)
            blk = index_tensor([i.block_index for i in infos], dev)
            self.kv.k_layers[layer][blk, :, at] = k[pick]
            self.kv.v_layers[layer][blk, :, at] = v[pick]
            for i in infos:
                i.length += 1
        for b in rest:
            self.kv.append_token(layer, tables[b], k[b], v[b])
