"""lesson: 036
verdict: wrong
cause: exits
shows: cpu
A check left over from debugging calls `sys.exit` when a row's last block lies before the one that came first,
which happens as soon as blocks are used again.
"""

import sys

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for lay in range(self.kv.num_layers):
            for b, s in enumerate(sessions):
                host[lay, b] = self.row(s.block_ids_per_layer, lay)
        return self.buffer.to_device()

    def row(self, table, lay):
        table.row_cache = table.row_cache or [[torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1] for _ in table]
        e, ids = table.row_cache[lay], table[lay]
        if ids and (e[1], e[2]) != (len(ids), ids[-1]):
            if ids[-1] < ids[0]:
                print("block table broken:", lay, ids)
                sys.exit(3)
            k = max(e[1] - 1, 0)
            e[0].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
            e[1:] = len(ids), ids[-1]
        return e[0]
