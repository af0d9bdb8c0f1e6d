"""lesson: 036
verdict: wrong
cause: raises
shows: cpu
Hangs the rows on the session as a new attribute; a session has slots, so this raises AttributeError.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            if not hasattr(session, "_rows"):
                session._rows = [[torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1] for _ in host]
            for lay, entry in enumerate(session._rows):
                ids = session.block_ids_per_layer[lay]
                if ids and entry[1:] != [len(ids), ids[-1]]:
                    k = max(entry[1] - 1, 0)
                    entry[0].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
                    entry[1:] = len(ids), ids[-1]
                host[lay, b] = entry[0]
        return self.buffer.to_device()
