"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
Each entry of each row is stored by itself into the buffer at each step: nothing is built from a list, and
nothing is kept either.
"""

import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """Writes straight into the staging buffer, so there is no row to build."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions):
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        host.zero_()
        view = host.numpy()
        for b, session in enumerate(sessions):
            for lay, ids in enumerate(session.block_ids_per_layer):
                for j, block_id in enumerate(ids):
                    view[lay, b, j] = self.kv.info(block_id).block_index
        return self.buffer.to_device()
