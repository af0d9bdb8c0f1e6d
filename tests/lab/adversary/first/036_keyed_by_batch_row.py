"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
Rows are kept by the place in the batch, so a session that moves up or changes place gets the beginning of
another's row.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """One matrix for the batch, in which only tails are rewritten."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        L, B = kv.num_layers, config.max_batch_size
        self.rows = np.zeros((L, B, self.max_blocks), dtype=np.int32)
        self.known = np.zeros((L, B), dtype=np.int64)
        self.last = np.full((L, B), -1, dtype=np.int64)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        for b, session in enumerate(sessions):
            for lay, ids in enumerate(session.block_ids_per_layer):
                n = len(ids)
                if n and (self.known[lay, b] != n or self.last[lay, b] != ids[-1]):
                    start = min(max(int(self.known[lay, b]) - 1, 0), n - 1)
                    self.rows[lay, b, start:n] = [i - lay * self.kv.num_blocks for i in ids[start:]]
                    self.rows[lay, b, n:] = 0
                    self.known[lay, b], self.last[lay, b] = n, ids[-1]
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        host.copy_(torch.from_numpy(self.rows[:, : len(sessions)]))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()
