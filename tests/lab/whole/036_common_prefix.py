# right
from dataclasses import dataclass, field

import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


@dataclass(slots=True)
class Row:
    tensor: torch.Tensor
    shows: list[int] = field(default_factory=list)

    def update(self, ids, offset):
        if self.shows != ids:
            same = 0
            for mine, theirs in zip(self.shows, ids, strict=False):
                if mine != theirs:
                    break
                same += 1
            self.tensor[len(ids) : len(self.shows)] = 0
            for i in range(same, len(ids)):
                self.tensor[i] = ids[i] - offset
            self.shows[same:] = ids[same:]
        return self.tensor


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            for layer_idx in range(self.kv.num_layers):
                row = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                host[layer_idx, b].copy_(row)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = {}
        if layer_idx not in table.row_cache:
            table.row_cache[layer_idx] = Row(torch.zeros(self.max_blocks, dtype=torch.int32))
        return table.row_cache[layer_idx].update(table[layer_idx], offset)
