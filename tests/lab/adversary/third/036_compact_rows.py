"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
The rows are kept as bytes, to take a quarter of the memory: right while a layer has at most 256 blocks. Block 256 and
those after it wrap around to 0, 1, ...
"""

import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            torch.stack(rows, out=host[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            compact = torch.zeros((self.kv.num_layers, self.max_blocks), dtype=torch.uint8)
            table.row_cache = [compact, [(0, -1)] * self.kv.num_layers]
        compact, signatures = table.row_cache
        ids, (count, _) = table[layer_idx], signatures[layer_idx]
        signature = len(ids), ids[-1]
        if signature != signatures[layer_idx]:
            tail = slice(max(count - 1, 0), len(ids))
            compact.numpy()[layer_idx, tail] = np.subtract(ids[tail], offset)
            signatures[layer_idx] = signature
        return compact[layer_idx].int()
