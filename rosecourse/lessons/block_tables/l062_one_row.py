"""Part `block_tables`: where, for each session, the blocks lie in every layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.ranges import range_for
from ...kv.buffers import StagingBuffer
from ...kv.one_table import BlockTable, KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession


class BlockTables:
    """One row a session, kept from step to step, rebuilt when it changes; all layers read the same ones."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(len(sessions), self.max_blocks)
        rows = [self.get_paged_block_table_row_cpu(session.table) for session in sessions]
        torch.stack(rows, out=block_tables_cpu)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device().expand(self.kv.num_layers, -1, -1)

    def get_paged_block_table_row_cpu(self, table: BlockTable) -> torch.Tensor:
        """One session's row, int32 [max_blocks], from the cache that the table carries.

        A table only grows, except that its last block may be replaced by a copy: its length and last block show a
        change, and only its end is written anew. Other blocks come with another table, whose cache is empty.
        """
        if table.row_cache is None:
            table.row_cache = (torch.zeros(self.max_blocks, dtype=torch.int32, device="cpu"), (-1, -1))
        row, signature = table.row_cache
        new_signature = (len(table), table[-1] if table else -1)
        if new_signature != signature:
            start = max(signature[0] - 1, 0)  # what lies before has not changed
            row.numpy()[start : len(table)] = table[start:]
            table.row_cache = (row, new_signature)
        return row
