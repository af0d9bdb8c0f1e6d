# right
import ctypes

import torch

from rosecourse.kv.buffers import StagingBuffer


class Cell(ctypes.Structure):
    pass


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.row = ctypes.c_int32 * config.max_blocks
        self.cell = type(
            "Cell", (Cell,), {"_fields_": [("n", ctypes.c_int64), ("last", ctypes.c_int64), ("row", self.row)]}
        )
        self.shape = (kv.num_layers, config.max_blocks)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        layers, width = self.shape
        to = self.buffer.host(layers, len(sessions), width).data_ptr()
        for lay in range(layers):
            for s in sessions:
                ctypes.memmove(to, ctypes.byref(self.fresh(s.block_ids_per_layer, lay).row), 4 * width)
                to += 4 * width
        return self.buffer.to_device()

    def fresh(self, table, lay):
        if table.row_cache is None:
            table.row_cache = (self.cell * self.shape[0])()
        c, ids = (table.row_cache[lay], table[lay])
        if ids and (c.n != len(ids) or c.last != ids[-1] + 1):
            for j in range(c.n and c.n - 1, len(ids)):
                c.row[j] = ids[j] % self.kv.num_blocks
            c.n, c.last = (len(ids), ids[-1] + 1)
        return c
