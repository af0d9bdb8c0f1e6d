"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
What is kept beside the row is the session's list itself, not a copy of it: it is compared with itself, so no change is
ever seen and the row stays as it was in the first step.
"""

from dataclasses import dataclass

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass
class Kept:
    row: torch.Tensor
    ids: list


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for s in sessions
            ]
            torch.stack(rows, out=host[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                Kept(torch.zeros(self.max_blocks, dtype=torch.int32), []) for _ in range(self.kv.num_layers)
            ]
        kept = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if kept.ids != ids:
            # only the tail can differ: new blocks, or the copy of the last one
            first = max(len(kept.ids) - 1, 0)
            kept.row.numpy()[first : len(ids)] = [i - offset for i in ids[first:]]
            kept.ids = ids
        return kept.row
