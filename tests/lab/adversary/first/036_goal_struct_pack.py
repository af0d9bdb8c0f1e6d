"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
The rows are packed into bytes from the lists at each step; a compare of these bytes then avoids only a cheap
copy.
"""

import struct

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """Compares the bytes of a row with those of the step before and copies what differs."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.pack = struct.Struct(f"{config.max_blocks}i").pack

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, s in enumerate(sessions):
            t = s.block_ids_per_layer
            old = t.row_cache or [(b"", None)] * len(t)
            new = []
            for lay, ids in enumerate(t):
                packed = self.pack(*[i - lay * self.kv.num_blocks for i in ids], *[0] * (self.max_blocks - len(ids)))
                row = old[lay][1] if old[lay][0] == packed else torch.frombuffer(bytearray(packed), dtype=torch.int32)
                host[lay, b] = row
                new.append((packed, row))
            t.row_cache = new
        return self.buffer.to_device()
