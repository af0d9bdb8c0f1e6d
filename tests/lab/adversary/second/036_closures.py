"""lesson: 036
verdict: right
cause: right
shows: cpu
A table carries one closure for each layer, which remembers count and last id, and brings its row up to date when asked.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


def keeper(row, offset):
    """A function ids -> row, written anew only from the last block that it has seen."""
    count, last = 0, None

    def row_of(ids):
        nonlocal count, last
        if ids and (count != len(ids) or last != ids[-1]):
            for i in range(max(count - 1, 0), len(ids)):
                row[i] = ids[i] - offset
            count, last = len(ids), ids[-1]
        return row

    return row_of


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        layers, n = range(self.kv.num_layers), self.kv.num_blocks
        tables = [session.block_ids_per_layer for session in sessions]
        rows = [self.get_paged_block_table_row_cpu(t, layer_idx=i, offset=i * n) for i in layers for t in tables]
        host = self.buffer.host(len(rows), self.max_blocks)
        torch.stack(rows, out=host)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device().view(len(layers), len(tables), self.max_blocks)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        row_of = table.row_cache[layer_idx]
        if row_of is None:
            row_of = table.row_cache[layer_idx] = keeper(torch.zeros(self.max_blocks, dtype=torch.int32), offset)
        return row_of(table[layer_idx])
