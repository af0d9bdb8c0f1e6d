# wrong, which a CPU can show
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer

Signature = tuple[int, int, int]


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

    def signature(self, ids):
        last = self.kv.info(ids[-1])
        return (len(ids), ids[-1], last.length)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                (torch.zeros(self.max_blocks, dtype=torch.int32), None) for _ in range(self.kv.num_layers)
            ]
        row, old = table.row_cache[layer_idx]
        ids = table[layer_idx]
        new = self.signature(ids)
        if new != old:
            start = max(old[0] - 1, 0) if old else 0
            row[start : len(ids)] = torch.tensor([block_id - offset for block_id in ids[start:]], dtype=torch.int32)
            table.row_cache[layer_idx] = (row, new)
        return row
