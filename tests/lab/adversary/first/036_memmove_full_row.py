"""lesson: 036
verdict: wrong
cause: outside
shows: cpu
Copies a whole row of bytes out of an array that holds only the new ids: it reads behind the array, and the
padding shows what lies there.
"""

import array
import ctypes

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """memmove is the fastest copy there is."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.bytes = 4 * config.max_blocks

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for lay in range(self.kv.num_layers):
            for b, s in enumerate(sessions):
                host[lay, b] = self.row(s.block_ids_per_layer, lay)
        return self.buffer.to_device()

    def row(self, table, lay):
        if table.row_cache is None:
            table.row_cache = [(torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1) for _ in table]
        row, n, last = table.row_cache[lay]
        ids = table[lay]
        if ids and (n, last) != (len(ids), ids[-1]):
            n = max(n - 1, 0)
            new = array.array("i", [i - lay * self.kv.num_blocks for i in ids[n:]])
            ctypes.memmove(row.data_ptr() + 4 * n, new.buffer_info()[0], self.bytes - 4 * n)
            table.row_cache[lay] = row, len(ids), ids[-1]
        return row
