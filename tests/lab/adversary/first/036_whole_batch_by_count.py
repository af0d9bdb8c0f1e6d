"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
The whole tensor is kept while the number of sessions and of all their blocks is the same, which other
sessions can have as well.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.seen, self.tables = None, None

    def __call__(self, sessions):
        total = sum(len(ids) for s in sessions for ids in s.block_ids_per_layer)
        if self.seen == (len(sessions), total):
            return self.tables  # nothing has been allocated since
        self.seen = (len(sessions), total)
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        host.zero_()
        for b, s in enumerate(sessions):
            for lay, ids in enumerate(s.block_ids_per_layer):
                host[lay, b, : len(ids)] = torch.as_tensor(ids, dtype=torch.int32) - lay * self.kv.num_blocks
        self.tables = self.buffer.to_device()
        return self.tables
