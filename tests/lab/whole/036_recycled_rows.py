# wrong, which a CPU can show
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv, self.max_blocks = (kv, config.max_blocks)
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.in_use = []
        self.spare = []

    def __call__(self, sessions):
        self.collect()
        L, B, M = (self.kv.num_layers, len(sessions), self.max_blocks)
        cpu = self.buffer.host(L, B, M)
        for l in range(L):
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(
                        s.block_ids_per_layer, layer_idx=l, offset=l * self.kv.num_blocks
                    )
                    for s in sessions
                ],
                out=cpu[l],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def collect(self):
        self.spare += [table.row_cache for table in self.in_use if table.freed]
        self.in_use = [table for table in self.in_use if not table.freed]

    def new_rows(self):
        rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
        return [(row, 0, None) for row in rows]

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = self.spare.pop() if self.spare else self.new_rows()
            self.in_use.append(table)
        row, count, last = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if (len(ids), ids[-1]) != (count, last):
            for place in range(max(count - 1, 0), len(ids)):
                row[place] = ids[place] - offset
            table.row_cache[layer_idx] = (row, len(ids), ids[-1])
        return row
