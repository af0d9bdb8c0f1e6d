"""lesson: 038
verdict: wrong
cause: cow-missed
shows: cpu
Takes a block for shared only if two sessions of this batch end in it: a fork that sits this step out is overlooked.
"""

from collections import Counter
from itertools import compress

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(
                layer_idx, [s.block_ids_per_layer[layer_idx] for s in sessions], keys[layer_idx], values[layer_idx]
            )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        # Two writers of one block must not meet in one store. Count who ends where.
        ends = [ids[-1] if ids else None for ids in block_ids_list]
        writers = Counter(ends)
        ok = [
            end is not None and writers[end] == 1 and self.kv.info(end).length < self.kv.block_size for end in ends
        ]
        rows = list(compress(range(len(ends)), ok))
        infos = [self.kv.info(end) for end in compress(ends, ok)]
        if rows:
            dev = self.kv.device
            r = index_tensor(rows, dev)
            where = (
                index_tensor([i.block_index for i in infos], dev),
                slice(None),
                index_tensor([i.length for i in infos], dev),
            )
            self.kv.k_layers[layer_idx][where] = key_new[r]
            self.kv.v_layers[layer_idx][where] = value_new[r]
        for i in infos:
            i.length += 1
        for b, good in enumerate(ok):
            if not good:
                self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
