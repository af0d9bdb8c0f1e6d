"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
`squeeze()` is meant for one dimension and takes away every one of size 1: with a batch of one, or one layer,
the table has a dimension too few.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        tables = [s.block_ids_per_layer for s in sessions]
        cells = [torch.stack([self.row(t, lay) for t in tables]) for lay in range(self.kv.num_layers)]
        flat = torch.stack(cells).unsqueeze(0)
        self.buffer.host(*flat.shape).copy_(flat)
        return self.buffer.to_device().squeeze()

    def row(self, table, lay):
        if table.row_cache is None:
            table.row_cache = {}
        row, seen = table.row_cache.setdefault(lay, (torch.zeros(self.max_blocks, dtype=torch.int32), []))
        ids = table[lay]
        if not seen or len(seen) != len(ids) or seen[-1] != ids[-1]:
            k = max(len(seen) - 1, 0)
            row.numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
            seen[k:] = ids[k:]
        return row
