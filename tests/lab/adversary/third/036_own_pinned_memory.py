"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: disclosed
Has a pinned buffer of its own in place of `StagingBuffer`, and writes the next step's rows into it without waiting for
the last copy out of it. On a CPU there is no copy; on a GPU it goes well as long as somebody else waits in each step.
"""

import math

import torch

from rosecourse.decode.step import range_for


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        size = kv.num_layers * config.max_batch_size * self.max_blocks
        self.cuda = kv.device.type == "cuda"
        self.pinned = torch.zeros(size, dtype=torch.int32, pin_memory=self.cuda)
        self.on_device = torch.zeros(size, dtype=torch.int32, device=kv.device) if self.cuda else self.pinned

    def __call__(self, sessions):
        shape = self.kv.num_layers, len(sessions), self.max_blocks
        used = math.prod(shape)
        host, there = self.pinned[:used], self.on_device[:used]
        rows = [
            self.get_paged_block_table_row_cpu(
                s.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
            )
            for layer_idx in range(self.kv.num_layers)
            for s in sessions
        ]
        torch.cat(rows, out=host)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            if self.cuda:
                there.copy_(host, non_blocking=True)
        return there.view(shape)

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        if table.row_cache is None:
            table.row_cache = [
                (row, (-1, -1)) for row in torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            ]
        row, was = table.row_cache[layer_idx]
        ids = table[layer_idx]
        now = (len(ids), ids[-1] if ids else -1)
        if was != now:
            start = max(was[0] - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            table.row_cache[layer_idx] = (row, now)
        return row
