"""lesson: 038
verdict: wrong
cause: inputs-changed
shows: cpu
Takes each layer's K and V out of the caller's lists with `pop(0)`, to let go of their memory early. Whoever reads the
outputs of the forward afterwards finds two empty lists.
"""

from itertools import count

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        layers = count()
        while keys:
            layer = next(layers)
            self.layer(layer, [s.block_ids_per_layer[layer] for s in sessions], keys.pop(0), values.pop(0))

    def layer(self, layer, tables, k, v):
        infos = [self.kv.info(t[-1]) if t else None for t in tables]
        easy = [b for b, i in enumerate(infos) if i is not None and i.length < self.kv.block_size and i.owners == 1]
        if easy:
            where = [[infos[b].block_index for b in easy], [infos[b].length for b in easy], easy]
            blocks, slots, rows = index_tensor(where, self.kv.device)
            self.kv.k_layers[layer][blocks, :, slots] = k[rows]
            self.kv.v_layers[layer][blocks, :, slots] = v[rows]
        for b in easy:
            infos[b].length += 1
        for b, table in enumerate(tables):
            if b not in easy:
                self.kv.append_token(layer, table, k[b], v[b])
