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
        tables = [s.block_ids_per_layer for s in sessions]
        order = sorted(range(len(tables)), key=lambda b: -len(tables[b][0]))
        out = self.buffer.host(self.kv.num_layers, len(tables), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = []
            for b in order:
                rows.append(self.get_paged_block_table_row_cpu(tables[b], layer_idx=layer_idx, offset=offset))
            torch.stack([rows[b] for b in order], out=out[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        cache = table.row_cache
        if cache is None:
            cache = table.row_cache = [None] * self.kv.num_layers
        ids = table[layer_idx]
        kept = cache[layer_idx]
        if kept is None:
            row, start = (torch.zeros(self.max_blocks, dtype=torch.int32), 0)
        elif kept["count"] == len(ids) and kept["last"] == ids[-1]:
            return kept["row"]
        else:
            row, start = (kept["row"], kept["count"] - 1)
        row.numpy()[start : len(ids)] = [i - offset for i in ids[start:]]
        cache[layer_idx] = {"row": row, "count": len(ids), "last": ids[-1]}
        return row
