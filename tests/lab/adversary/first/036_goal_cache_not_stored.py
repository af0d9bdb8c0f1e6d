"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
`cache = table.row_cache or {}` makes a dict that is never put back on the table, so nothing is ever found.
"""

import numpy as np
import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for lay, plane in enumerate(out):
            for b, s in enumerate(sessions):
                plane[b] = self.row(s.block_ids_per_layer, lay)
        return self.buffer.to_device()

    def row(self, table, lay):
        cache = table.row_cache or {}
        ids = table[lay]
        key = lay, len(ids), ids[-1] if ids else None
        if key not in cache:
            row = np.zeros(self.max_blocks, np.int32)
            row[: len(ids)] = np.array(ids, np.int64) - lay * self.kv.num_blocks
            cache[key] = torch.from_numpy(row)
        return cache[key]
