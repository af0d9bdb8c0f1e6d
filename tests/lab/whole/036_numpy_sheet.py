# right
import numpy as np
import torch

from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer


class Sheet(list):
    def __init__(self, layers, width):
        self.numbers = np.zeros((layers, width), dtype=np.int32)
        super().__init__(torch.from_numpy(self.numbers).unbind(0))
        self.counts = [0] * layers
        self.lasts = [None] * layers

    def refresh(self, layer, ids, offset):
        count = len(ids)
        if count == self.counts[layer] and (not count or ids[-1] == self.lasts[layer]):
            return
        line = self.numbers[layer]
        place = count - 1
        while place >= 0 and place >= self.counts[layer] - 1:
            line[place] = ids[place] - offset
            place -= 1
        self.counts[layer] = count
        self.lasts[layer] = ids[-1] if ids else None


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        layers = self.kv.num_layers
        host = self.buffer.host(layers, len(sessions), self.max_blocks)
        for layer in range(layers):
            offset = layer * self.kv.num_blocks
            torch.stack(
                tuple(
                    (
                        self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer, offset=offset)
                        for s in sessions
                    )
                ),
                out=host[layer],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = Sheet(self.kv.num_layers, self.max_blocks)
        table.row_cache.refresh(layer_idx, table[layer_idx], offset)
        return table.row_cache[layer_idx]
