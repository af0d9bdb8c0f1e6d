# wrong, which a CPU can show
from typing import NamedTuple

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class Kept(NamedTuple):
    row: torch.Tensor
    sig: tuple


NEVER = (-1, -1)


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        n = kv.num_layers * config.max_batch_size * self.max_blocks
        self.buffer = StagingBuffer(n, torch.int32, kv.device)

    def __call__(self, sessions):
        tables = [session.block_ids_per_layer for session in sessions]
        staged = self.buffer.host(self.kv.num_layers, len(tables), self.max_blocks)
        for layer_idx, where in enumerate(staged):
            row_of = self.get_paged_block_table_row_cpu
            offset = layer_idx * self.kv.num_blocks
            torch.stack([row_of(t, layer_idx=layer_idx, offset=offset) for t in tables], out=where)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            fresh = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [Kept(row, NEVER) for row in fresh]
        ids, kept = (table[layer_idx], table.row_cache[layer_idx])
        sig = (len(ids), ids[-1])
        if sig != kept.sig:
            kept.row[len(ids) - 1] = ids[-1] - offset
            table.row_cache[layer_idx] = kept._replace(sig=sig)
        return kept.row
