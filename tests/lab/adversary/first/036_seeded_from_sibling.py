"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
A table that begins with the same block as another takes that one's row as its own: both write their tails
into the same row.
"""

import weakref

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """A fork begins with the blocks of its parent, so it takes over the parent's row instead of building one."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.by_first = weakref.WeakValueDictionary()

    def __call__(self, sessions):
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, s in enumerate(sessions):
            for lay, ids in enumerate(s.block_ids_per_layer):
                out[lay, b] = self.row(s.block_ids_per_layer, lay, ids)
        return self.buffer.to_device()

    def row(self, table, lay, ids):
        if table.row_cache is None:
            table.row_cache = [None] * len(table)
        if table.row_cache[lay] is None:
            first = ids[0] if ids else None
            row = self.by_first.get(first)
            if row is None:
                row = torch.zeros(self.max_blocks, dtype=torch.int32)
                if ids:
                    self.by_first[first] = row
            table.row_cache[lay] = [row, 0, -1]
        e = table.row_cache[lay]
        if ids and e[1:] != [len(ids), ids[-1]]:
            k = max(e[1] - 1, 0)
            e[0].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
            e[1:] = len(ids), ids[-1]
        return e[0]
