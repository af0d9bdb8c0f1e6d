"""lesson: 036
verdict: wrong
cause: wrong-layer
shows: cpu
Builds the rows of layer 0 and shows them for every layer, though each layer has a pool of its own and may
hold other blocks.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """All layers roll over together, so one row a session is enough."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            host[:, b] = self.row(session.block_ids_per_layer)
        return self.buffer.to_device()

    def row(self, table):
        ids = table[0]
        if table.row_cache is None:
            table.row_cache = [torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1]
        row, n, last = table.row_cache
        if ids and (n, last) != (len(ids), ids[-1]):
            n = max(n - 1, 0)
            row.numpy()[n : len(ids)] = ids[n:]
            table.row_cache[1:] = [len(ids), ids[-1]]
        return row
