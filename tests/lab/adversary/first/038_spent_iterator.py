"""lesson: 038
verdict: wrong
cause: half-written
shows: cpu
The triples of row, block and slot are a generator. Writing K uses it up; for V it is empty, and V is never written.
"""

import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_layer(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def append_layer(self, layer, tables, key_new, value_new):
        kv = self.kv
        last = [kv.info(t[-1]) if t else None for t in tables]
        fast = {b: i for b, i in enumerate(last) if i and i.length < kv.block_size and i.owners == 1}
        triples = ((b, i.block_index, i.length) for b, i in fast.items())
        for cache, new in ((kv.k_layers[layer], key_new), (kv.v_layers[layer], value_new)):
            where = torch.tensor(list(triples), dtype=torch.long, device=kv.device).view(-1, 3)
            rows, blocks, slots = where.unbind(1)
            cache[blocks, :, slots] = new.index_select(0, rows)
        for info in fast.values():
            info.length += 1
        for b in sorted(set(range(len(tables))) - fast.keys()):
            kv.append_token(layer, tables[b], key_new[b], value_new[b])
