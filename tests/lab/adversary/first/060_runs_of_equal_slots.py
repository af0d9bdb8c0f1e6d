"""lesson: 060
verdict: wrong
cause: hangs
shows: cpu
Goes through the batch in runs of equal positions, one store a run. For a run of a single session it takes a
shortcut and goes on without moving the index: the loop never ends as soon as one session stands alone at its slot.
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
        i = 0
        while i < len(fast):
            j = i + 1
            while j < len(fast) and tails[fast[j]].length == tails[fast[i]].length:
                j += 1
            at = tails[fast[i]].length
            if j - i == 1 and len(fast) > 1:
                t = tails[fast[i]]
                self.kv.k_layers[layer][t.block_index, :, at] = k[fast[i]]
                self.kv.v_layers[layer][t.block_index, :, at] = v[fast[i]]
                continue
            blk = index_tensor([tails[b].block_index for b in fast[i:j]], self.kv.device)
            contiguous = fast[j - 1] - fast[i] == j - i - 1
            rows = slice(fast[i], fast[j - 1] + 1) if contiguous else index_tensor(fast[i:j], self.kv.device)
            self.kv.k_layers[layer][blk, :, at] = k[rows]
            self.kv.v_layers[layer][blk, :, at] = v[rows]
            i = j
        for b in fast:
            tails[b].length += 1
        for b, t in enumerate(tails):
            if t.owners > 1:
                self.kv.append_token(layer, tables[b], k[b], v[b])
