"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
Rows are kept by the prompt's tokens: two sessions with one prompt share one row, and each writes its tail
over the other's.
"""

import itertools
from collections import defaultdict

import numpy as np
import torch

from rosecourse.kv.buffers import StagingBuffer


class MyBlockTables:
    """Every prompt has its rows."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.memo = defaultdict(lambda: [np.zeros(config.max_blocks, np.int32), 0, -1])

    def __call__(self, sessions):
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks).numpy()
        for lay, b in itertools.product(range(self.kv.num_layers), range(len(sessions))):
            out[lay, b] = self.row(sessions[b], lay)
        return self.buffer.to_device()

    def row(self, session, lay):
        e = self.memo[tuple(session.prompt_ids), lay]
        ids = session.block_ids_per_layer[lay]
        if ids and (e[1] != len(ids) or e[2] != ids[-1]):
            s = max(e[1] - 1, 0)
            e[0][s : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[s:]]
            e[1:] = len(ids), ids[-1]
        return e[0]
