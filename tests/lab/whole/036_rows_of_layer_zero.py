# wrong, which a CPU can show
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
        for b, session in enumerate(sessions):
            for layer_idx in range(self.kv.num_layers):
                offset = layer_idx * self.kv.num_blocks
                host[layer_idx, b] = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [torch.zeros(self.max_blocks, dtype=torch.int32), None, 0]
        row, signature, count = table.row_cache
        ids = table[0]
        now = (len(ids), ids[-1])
        if now != signature:
            start = max(count - 1, 0)
            row.numpy()[start : len(ids)] = ids[start:]
            table.row_cache[1:] = (now, len(ids))
        return row
