# right
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass(slots=True)
class KeptRow:
    entries: Tensor
    count: int = 0
    newest: int | None = None

    @classmethod
    def of_width(cls, width):
        return cls(torch.zeros(width, dtype=torch.int32))

    def stale_places(self, ids):
        if len(ids) > self.count:
            copied = self.count > 0 and ids[self.count - 1] != self.newest
            return range(self.count - copied, len(ids))
        copied = bool(ids) and ids[-1] != self.newest
        return range(len(ids) - copied, len(ids))

    def show(self, ids, first_id):
        for place in self.stale_places(ids):
            self.entries[place] = ids[place] - first_id
        self.count, self.newest = (len(ids), ids[-1] if ids else None)
        return self.entries


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def rows(self, sessions):
        for layer_idx in range(self.kv.num_layers):
            for session in sessions:
                yield self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )

    def __call__(self, sessions):
        staged = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        rows = self.rows(sessions)
        for of_layer in staged:
            torch.stack(list(islice(rows, len(sessions))), out=of_layer)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        kept = table.row_cache[layer_idx]
        if kept is None:
            kept = table.row_cache[layer_idx] = KeptRow.of_width(self.max_blocks)
        return kept.show(table[layer_idx], offset)
