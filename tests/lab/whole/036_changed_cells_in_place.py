# right
import weakref

import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class Known:
    __slots__ = ("__weakref__", "lasts", "place", "sizes")

    def __init__(self, layers):
        self.sizes, self.lasts = ([0] * layers, [-1] * layers)
        self.place = -1


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.mirror = np.zeros((kv.num_layers, config.max_batch_size, self.max_blocks), dtype=np.int32)
        self.order: list[weakref.ref] = []

    def __call__(self, sessions):
        for b, session in enumerate(sessions):
            self.place(b, session.block_ids_per_layer)
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        np.copyto(host.numpy(), self.mirror[:, : len(sessions)])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def place(self, b, table):
        if table.row_cache is None:
            table.row_cache = [Known(len(table)), np.zeros((len(table), self.max_blocks), np.int32)]
        known, rows = table.row_cache
        here = known.place == b < len(self.order) and self.order[b]() is known
        for lay, ids in enumerate(table):
            n, size = (len(ids), known.sizes[lay])
            if n and (size, known.lasts[lay]) != (n, ids[-1]):
                for j in range(max(size - 1, 0), n):
                    rows[lay, j] = ids[j] - lay * self.kv.num_blocks
                    if here:
                        self.mirror[lay, b, j] = rows[lay, j]
                known.sizes[lay], known.lasts[lay] = (n, ids[-1])
        if not here:
            self.mirror[:, b] = rows
            known.place = b
            self.order[b : b + 1] = [weakref.ref(known)]
