"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
The signature is the sum of the ids, which stays the same when block 0 is added, and may do so when another
block takes the last one's place.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """A check sum over the list shows every change."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, s in enumerate(sessions):
            for lay, ids in enumerate(s.block_ids_per_layer):
                host[lay, b] = self.row(s.block_ids_per_layer, lay, ids)
        return self.buffer.to_device()

    def row(self, table, lay, ids):
        if table.row_cache is None:
            table.row_cache = [(torch.zeros(self.max_blocks, dtype=torch.int32), 0, 0) for _ in table]
        row, check, n = table.row_cache[lay]
        local = [i - lay * self.kv.num_blocks for i in ids]
        if sum(local) != check:
            n = max(n - 1, 0)
            row.numpy()[n : len(ids)] = local[n:]
            table.row_cache[lay] = row, sum(local), len(ids)
        return row
