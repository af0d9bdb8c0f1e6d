"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
The kept rows are NumPy bytes to save memory: right up to 256 blocks in a layer, block 256 then comes back as block 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """A small matrix [L, max_blocks] on each table, and two small arrays that say what it shows."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            host[layer_idx] = torch.stack(rows)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            shape = (self.kv.num_layers, self.max_blocks)
            small = np.zeros(shape, dtype=np.uint8)
            table.row_cache = (small, torch.from_numpy(small), [(0, -1)] * shape[0])
        small, as_tensor, shown = table.row_cache
        ids = table[layer_idx]
        now = (len(ids), ids[-1] if ids else -1)
        if shown[layer_idx] != now:
            done = max(shown[layer_idx][0] - 1, 0)
            small[layer_idx, done : len(ids)] = np.array(ids[done:]) - offset
            shown[layer_idx] = now
        return as_tensor[layer_idx].int()
