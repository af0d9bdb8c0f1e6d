"""lesson: 038
verdict: wrong
cause: raises
shows: both
Writes through NumPy views of the cache. On a CPU in float32 that is exact and one store each; a tensor on a GPU has no
NumPy view, and neither has bfloat16.
"""

import numpy as np


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.one(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def one(self, layer, tables, k, v):
        info = [self.kv.info(t[-1]) if t else None for t in tables]
        easy = np.array([i is not None and i.owners == 1 and i.length < self.kv.block_size for i in info])
        rows = np.flatnonzero(easy)
        blocks = np.array([info[b].block_index for b in rows], dtype=np.intp)
        slots = np.array([info[b].length for b in rows], dtype=np.intp)
        self.kv.k_layers[layer].numpy()[blocks, :, slots] = k.numpy()[rows]
        self.kv.v_layers[layer].numpy()[blocks, :, slots] = v.numpy()[rows]
        for b in rows:
            info[b].length += 1
        for b in np.flatnonzero(~easy):
            self.kv.append_token(layer, tables[b], k[b], v[b])
