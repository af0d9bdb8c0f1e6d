# wrong, which a CPU can show
import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class Row:
    def __init__(self, width):
        self.numbers = np.zeros(width, np.uint8)
        self.tensor = torch.from_numpy(self.numbers)
        self.wide = torch.zeros(width, dtype=torch.int32)
        self.count, self.last = (0, None)

    def update(self, ids, offset):
        if self.count == len(ids) and self.last == ids[-1]:
            return
        start = max(self.count - 1, 0)
        self.numbers[start : len(ids)] = (np.asarray(ids[start:]) - offset).astype(np.uint8)
        self.wide[start : len(ids)] = self.tensor[start : len(ids)]
        self.count, self.last = (len(ids), ids[-1])


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            for b, session in enumerate(sessions):
                host[layer_idx, b] = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [Row(self.max_blocks) for _ in range(self.kv.num_layers)]
        row = table.row_cache[layer_idx]
        row.update(table[layer_idx], offset)
        return row.wide
