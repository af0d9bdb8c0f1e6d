"""lesson: 036
verdict: right
cause: right
shows: cpu
All rows of a table in one tensor [L, max_blocks] that the table carries; they are brought up to date through
`get_paged_block_table_row_cpu`, and one `stack` over the sessions fills the whole buffer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model

RANGE = "roseinfer.decode_step_sessions.h2d_block_tables"


class _Rows(list):
    """What a table carries: for each layer the signature of the list that is shown; and the rows themselves."""

    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__([(0, None)] * num_layers)
        self.all = torch.zeros((num_layers, width), dtype=torch.int32)
        self.each = self.all.unbind()
        self.entries = [row.numpy() for row in self.each]


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.layers, self.width, self.blocks = kv.num_layers, config.max_blocks, kv.num_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(self.layers * config.max_batch_size * self.width, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        tables: list[BlockTable] = [session.block_ids_per_layer for session in sessions]
        for layer_idx in range(self.layers):
            for table in tables:
                self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=layer_idx * self.blocks)
        out = self.buffer.host(self.layers, len(tables), self.width)
        torch.stack([table.row_cache.all for table in tables], dim=1, out=out)
        with self.range(RANGE):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> Tensor:
        rows = table.row_cache
        if rows is None:
            rows = table.row_cache = _Rows(self.layers, self.width)
        ids = table[layer_idx]
        shown = (len(ids), ids[-1] if ids else None)
        if shown != rows[layer_idx]:
            entries = rows.entries[layer_idx]
            for place in range(max(rows[layer_idx][0] - 1, 0), len(ids)):
                entries[place] = ids[place] - offset
            rows[layer_idx] = shown
        return rows.each[layer_idx]
