"""lesson: 036
verdict: wrong
cause: wrong-block
shows: cpu
Takes the block number out of the global id with a bit mask, `block_id & (num_blocks - 1)`: another block than the right
one wherever the pool's size is not a power of two.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.mask = kv.num_blocks - 1  # cheaper than a subtraction for each id, and no offset is needed
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx in range(self.kv.num_layers):
            rows = [self.get_paged_block_table_row_cpu(t, layer_idx=layer_idx, offset=0) for t in tables]
            torch.stack(rows, out=host[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        if table.row_cache[layer_idx] is None:
            table.row_cache[layer_idx] = [torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1]
        kept = table.row_cache[layer_idx]
        row, n, last = kept
        ids = table[layer_idx]
        if ids and (n, last) != (len(ids), ids[-1]):
            view = memoryview(row.numpy())
            for place in range(n - 1 if n else 0, len(ids)):
                view[place] = ids[place] & self.mask
            kept[1], kept[2] = len(ids), ids[-1]
        return row
