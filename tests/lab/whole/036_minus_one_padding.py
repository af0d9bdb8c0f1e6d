# wrong, which a CPU can show
import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer

NO_BLOCK = -1


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            whole = np.full((self.kv.num_layers, self.max_blocks), NO_BLOCK, dtype=np.int32)
            table.row_cache = [(line, torch.from_numpy(line), (0, NO_BLOCK)) for line in whole]
        line, row, (count, last) = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if (count, last) != (len(ids), ids[-1]):
            begin = max(0, count - 1)
            line[begin : len(ids)] = np.array(ids[begin:], dtype=np.int64) - offset
            table.row_cache[layer_idx] = (line, row, (len(ids), ids[-1]))
        return row
