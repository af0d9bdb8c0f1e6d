"""lesson: 060
verdict: wrong
cause: goal-missed
shows: cpu
No index tensor and no gather, because every row is copied by itself: two copies for each session and layer, as many
as before the batched append.
"""


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
        K, V = self.kv.k_layers[layer], self.kv.v_layers[layer]
        later = []
        for b, ids in enumerate(tables):
            t = self.tail(layer, ids)
            if t.owners > 1:
                later.append(b)
                continue
            # integers only: a view of the slot, no index tensors
            K[t.block_index, :, t.length].copy_(k[b])
            V[t.block_index, :, t.length].copy_(v[b])
            t.length += 1
        for b in later:
            self.kv.append_token(layer, tables[b], k[b], v[b])
