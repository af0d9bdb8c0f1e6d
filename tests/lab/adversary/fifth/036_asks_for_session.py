"""lesson: 036
verdict: wrong
cause: interface
shows: cpu
get_paged_block_table_row_cpu takes the session in place of its block table. The part's own calls agree with that and the tables are right, but whoever
calls the method with a table, as the exercise says, gets an AttributeError.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Where, for each layer and session, the blocks lie: int32 [L, B, max_blocks]."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, session: InferenceSession, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        """The session's row of one layer, int32 [max_blocks]; kept with its block table."""
        table = session.block_ids_per_layer
        if table.row_cache is None:
            table.row_cache = [
                (torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1)
                for _ in range(self.kv.num_layers)
            ]
        ids = table[layer_idx]
        row, count, last = table.row_cache[layer_idx]
        newest = ids[-1] if ids else -1
        if count == len(ids) and last == newest:
            return row
        start = max(count - 1, 0)
        row.numpy()[start : len(ids)] = [i - offset for i in ids[start:]]
        table.row_cache[layer_idx] = (row, len(ids), newest)
        return row
