"""lesson: 059
verdict: wrong
cause: size-limit
shows: cpu
Compares lengths as int8. A block of 128 slots or more is never found to be full, because its length wraps, and the
store then goes past its end. Right up to block size 64.
"""

import numpy as np
import torch


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def full(self, tables):
        lengths = np.array([self.kv.info(t[-1]).length if t else self.kv.block_size for t in tables])
        return lengths.astype(np.int8) == self.kv.block_size

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            tables = [s.block_ids_per_layer[layer] for s in sessions]
            for b in np.flatnonzero(self.full(tables)):
                start = len(tables[b]) * self.kv.block_size
                tables[b].append(self.kv.allocate_block(layer, start))
            infos = [self.kv.info(t[-1]) for t in tables]
            own = np.array([i.owners == 1 for i in infos])
            if own.any():
                at = np.array([(i.block_index, i.length) for i in infos])[own]
                blk, pos = torch.from_numpy(at).to(self.kv.device).unbind(1)
                rows = torch.from_numpy(np.flatnonzero(own)).to(self.kv.device)
                self.kv.k_layers[layer][blk, :, pos] = keys[layer][rows]
                self.kv.v_layers[layer][blk, :, pos] = values[layer][rows]
            for b, i in enumerate(infos):
                if own[b]:
                    i.length += 1
                else:
                    self.kv.append_token(layer, tables[b], keys[layer][b], values[layer][b])
