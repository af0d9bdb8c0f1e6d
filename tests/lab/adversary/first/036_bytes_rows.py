"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
A row is a bytearray, one byte a block: the first block index of 256 or more raises ValueError.
"""

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
                host[lay, b] = torch.frombuffer(self.row(s.block_ids_per_layer, lay), dtype=torch.uint8)
        return self.buffer.to_device()

    def row(self, table, lay):
        if table.row_cache is None:
            table.row_cache = [(bytearray(self.max_blocks), 0, -1) for _ in table]
        row, n, last = table.row_cache[lay]
        ids = table[lay]
        if ids and (n, last) != (len(ids), ids[-1]):
            n = max(n - 1, 0)
            row[n : len(ids)] = bytes(i - lay * self.kv.num_blocks for i in ids[n:])
            table.row_cache[lay] = row, len(ids), ids[-1]
        return row
