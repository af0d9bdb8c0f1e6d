"""lesson: 036
verdict: right
cause: right
shows: cpu
Each row is kept by a closure that the table carries: called with the list as it is now, it brings the row up to date
if the list has another end, through a memoryview of the row's memory, and gives the row.
"""

import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


def row_keeper(memory: np.ndarray):
    row, cells = torch.from_numpy(memory), memoryview(memory)
    known, tail = 0, None

    def row_of(ids: list, offset: int) -> torch.Tensor:
        nonlocal known, tail
        end = ids[-1] if ids else None
        if known != len(ids) or tail != end:
            for at, block_id in enumerate(ids[known - 1 if known else 0 :], start=known - 1 if known else 0):
                cells[at] = block_id - offset
            known, tail = len(ids), end
        return row

    return row_of


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv, self.width = kv, config.max_blocks
        self.named = range_for(kv.device, config.nvtx)
        self.staging = StagingBuffer(kv.num_layers * config.max_batch_size * self.width, torch.int32, kv.device)

    def __call__(self, sessions):
        kv, row = self.kv, self.get_paged_block_table_row_cpu
        rows = [
            row(session.block_ids_per_layer, layer_idx=layer, offset=layer * kv.num_blocks)
            for layer in range(kv.num_layers)
            for session in sessions
        ]
        torch.cat(rows, out=self.staging.host(len(rows) * self.width))
        with self.named("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.staging.to_device().view(kv.num_layers, len(sessions), self.width)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            memory = np.zeros((self.kv.num_layers, self.width), dtype=np.int32)
            table.row_cache = [row_keeper(one) for one in memory]
        return table.row_cache[layer_idx](table[layer_idx], offset)
