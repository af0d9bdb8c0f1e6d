"""lesson: 036
verdict: right
cause: right
shows: cpu
Kept rows in small objects of the table, entered number by number; one stack for the rows of all layers.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class KeptRow:
    """The row of one list, and what it knows of the list: how long it was, and how it ended."""

    def __init__(self, width):
        self.entries = torch.zeros(width, dtype=torch.int32)
        self.writable = self.entries.numpy()  # the same memory
        self.known = 0
        self.end = None

    def show(self, ids, offset):
        newest = ids[-1] if ids else None
        if self.known != len(ids) or self.end != newest:
            # The last one that is known may have been replaced by its copy; those before it stay.
            for place in range(max(self.known - 1, 0), len(ids)):
                self.writable[place] = ids[place] - offset
            self.known, self.end = len(ids), newest
        return self.entries


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        rows = [
            self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer, offset=offset)
            for layer, offset in enumerate(range(0, self.kv.num_layers * self.kv.num_blocks, self.kv.num_blocks))
            for session in sessions
        ]
        torch.stack(rows, out=host.view(-1, self.max_blocks))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [KeptRow(self.max_blocks) for _ in range(self.kv.num_layers)]
        return table.row_cache[layer_idx].show(table[layer_idx], offset)
