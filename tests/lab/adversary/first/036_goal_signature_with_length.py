"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
The signature holds the number of cached tokens too, which changes at each step, so the end of every row is
written every time.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            for lay in range(self.kv.num_layers):
                out[lay, b].copy_(self.row(session, lay))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def row(self, session: InferenceSession, lay: int) -> torch.Tensor:
        table, offset = session.block_ids_per_layer, lay * self.kv.num_blocks
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        ids = table[lay]
        signature = (session.num_cached_tokens, len(ids), ids[-1] if ids else -1)
        if table.row_cache[lay] is None:
            table.row_cache[lay] = (torch.zeros(self.max_blocks, dtype=torch.int32), (-1, 0, -1))
        row, old = table.row_cache[lay]
        if signature != old:
            start = max(old[1] - 1, 0)
            row[start : len(ids)] = torch.tensor([i - offset for i in ids[start:]], dtype=torch.int32)
            table.row_cache[lay] = (row, signature)
        return row
