"""lesson: 036
verdict: wrong
cause: state-kept
shows: cpu
The part keeps the rows itself, by the id() of the table, because a list cannot be a key. When a table has died, a new
one may get its id, and with it the rows of the dead one.
"""

from collections import defaultdict

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.rows = defaultdict(lambda: torch.zeros(self.max_blocks, dtype=torch.int32))
        self.seen = defaultdict(lambda: (0, None))

    def __call__(self, sessions):
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        key = id(table), layer_idx
        row, ids = self.rows[key], table[layer_idx]
        n, last = self.seen[key]
        if ids and (n, last) != (len(ids), ids[-1]):
            start = n - 1 if n else 0
            row.numpy()[start : len(ids)] = [i - offset for i in ids[start:]]
            self.seen[key] = len(ids), ids[-1]
        return row
