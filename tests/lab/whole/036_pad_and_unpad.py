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
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = []
            for session in sessions:
                row = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
                rows.append(row)
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [None for _ in range(self.kv.num_layers)]
        ids = table[layer_idx]
        signature = (len(ids), ids[-1])
        kept = table.row_cache[layer_idx]
        if kept is not None and kept[0] == signature:
            return kept[1]
        if kept is None:
            start, row = (0, torch.zeros(self.max_blocks, dtype=torch.int32))
        else:
            start, row = (kept[0][0] - 1, kept[1])
        pad = self.max_blocks - len(ids)
        ids.extend([offset] * pad)
        row[start:] = torch.tensor(ids[start:], dtype=torch.int32) - offset
        del ids[-pad:]
        table.row_cache[layer_idx] = (signature, row)
        return row
