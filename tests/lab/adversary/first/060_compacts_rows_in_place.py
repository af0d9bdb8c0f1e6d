"""lesson: 060
verdict: wrong
cause: inputs-changed
shows: cpu
Where the batch is not whole, the rows to write are moved to the front of key_new and value_new themselves, to save
the selection's memory. The caller's K and V are changed, and the shared sessions then append what lies at their
place now.
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
        tails = [self.tail(layer, ids) for ids in tables]
        fast = [b for b, t in enumerate(tails) if t.owners == 1]
        slow = [b for b, t in enumerate(tails) if t.owners != 1]
        n = len(fast)
        if n:
            if slow:
                for to, b in enumerate(fast):  # ascending, so no row is overwritten before it has moved
                    if to != b:
                        k[to].copy_(k[b])
                        v[to].copy_(v[b])
            at = {tails[b].length for b in fast}
            at = min(at) if len(at) == 1 else index_tensor([tails[b].length for b in fast], self.kv.device)
            blk = index_tensor([tails[b].block_index for b in fast], self.kv.device)
            self.kv.k_layers[layer][blk, :, at] = k[:n]
            self.kv.v_layers[layer][blk, :, at] = v[:n]
            for b in fast:
                tails[b].length += 1
        for b in slow:
            self.kv.append_token(layer, tables[b], k[b], v[b])
