"""lesson: 036
verdict: wrong
cause: state-kept
shows: cpu
The rows are kept in a dictionary of the class, by layer and ids: a second engine of another size gets the first one's.
"""

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    rows = {}  # (layer, ids) -> row

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        L, B = self.kv.num_layers, len(sessions)
        host = self.buffer.host(L, B, self.max_blocks)
        for layer in range(L):
            for b in range(B):
                host[layer, b, :] = self.get_paged_block_table_row_cpu(
                    sessions[b].block_ids_per_layer, layer_idx=layer, offset=layer * self.kv.num_blocks
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [((-1, -1), None)] * self.kv.num_layers
        ids = table[layer_idx]
        now = (len(ids), ids[-1] if ids else -1)
        before, row = table.row_cache[layer_idx]
        if now != before:
            key = (layer_idx, *ids)
            if key not in self.rows:
                self.rows[key] = torch.zeros(self.max_blocks, dtype=torch.int32)
                self.rows[key].numpy()[: len(ids)] = [i - offset for i in ids]
            row = self.rows[key]
            table.row_cache[layer_idx] = (now, row)
        return row
