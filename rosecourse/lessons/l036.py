"""Block-table cache: rows of block tables are kept until they change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config import EngineConfig
from ..decode.step import range_for
from ..kv.buffers import StagingBuffer
from ..models.shape import Model
from ..request.session import InferenceSession
from .l035_blocks import BlockTable, KVBlockManager


class BlockTables:
    """Rows kept from step to step, rebuilt when they change; one asynchronous copy to the device for all layers."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks  # global block id -> block index in the layer
            rows = [
                self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        """One session's row of one layer, int32 [max_blocks], from the cache that the table carries.

        A table only grows, except that its last block may be replaced by a copy: its length and last block show a
        change, and only its end is written anew. Other blocks come with another table, whose cache is empty.
        """
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32, device="cpu").unbind()
            table.row_cache = [(row, (-1, -1)) for row in rows]
        row, signature = table.row_cache[layer_idx]
        ids = table[layer_idx]
        new_signature = (len(ids), ids[-1] if ids else -1)
        if new_signature != signature:
            start = max(signature[0] - 1, 0)  # what lies before has not changed
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            table.row_cache[layer_idx] = (row, new_signature)
        return row
