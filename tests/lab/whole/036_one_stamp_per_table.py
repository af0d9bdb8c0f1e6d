# wrong, which a CPU can show
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass
class KeptRows:
    rows: list[Tensor] = field(default_factory=list)
    count: int = 0
    last: int = -1

    def is_current(self, ids):
        return self.count == len(ids) and self.last == ids[-1]

    def stamp(self, ids):
        self.count, self.last = (len(ids), ids[-1])


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer in range(self.kv.num_layers):
            offset = layer * self.kv.num_blocks
            for b, session in enumerate(sessions):
                out[layer, b].copy_(
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer, offset=offset)
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def _new(self, table):
        kept = KeptRows()
        for layer, ids in enumerate(table):
            row = torch.zeros(self.max_blocks, dtype=torch.int32)
            self._fill(row, ids, 0, layer * self.kv.num_blocks)
            kept.rows.append(row)
        kept.stamp(table[0])
        return kept

    @staticmethod
    def _fill(row, ids, start, offset):
        row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [self._new(table)]
        kept = table.row_cache[0]
        row = kept.rows[layer_idx]
        if not kept.is_current(table[0]):
            self._fill(row, table[layer_idx], max(kept.count - 1, 0), offset)
            kept.stamp(table[0])
        return row
