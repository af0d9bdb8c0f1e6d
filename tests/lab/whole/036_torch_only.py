# right
from dataclasses import dataclass

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass(slots=True)
class Shown:
    row: torch.Tensor
    count: int = 0
    newest: int = -1

    def is_of(self, ids):
        return self.count == len(ids) and (not ids or self.newest == ids[-1])

    def follow(self, ids, offset):
        place = max(self.count - 1, 0)
        while place < len(ids):
            self.row[place].fill_(ids[place] - offset)
            place += 1
        self.count, self.newest = (len(ids), ids[-1])


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        rows = []
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for session in sessions:
                rows += [
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                ]
        torch.stack(rows, out=self.buffer.host(len(rows), self.max_blocks))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device().view(self.kv.num_layers, len(sessions), self.max_blocks)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                Shown(torch.zeros(self.max_blocks, dtype=torch.int32)) for _ in range(self.kv.num_layers)
            ]
        shown, ids = (table.row_cache[layer_idx], table[layer_idx])
        if not shown.is_of(ids):
            shown.follow(ids, offset)
        return shown.row
