"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
The number of blocks alone tells whether a kept row is still right. After a copy-on-write, which replaces the last id and
leaves the number as it is, the row goes on showing the block of the other session.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Rows are kept in the table's row_cache, one entry [row, blocks in it] per layer."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for b, session in enumerate(sessions):
                row = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
                out[layer_idx, b].copy_(row)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = []
            for _ in range(self.kv.num_layers):
                table.row_cache.append([torch.zeros(self.max_blocks, dtype=torch.int32), 0])
        entry = table.row_cache[layer_idx]
        ids = table[layer_idx]
        row, n = entry
        if len(ids) != n:  # the table has grown
            row.numpy()[n : len(ids)] = [block_id - offset for block_id in ids[n:]]
            entry[1] = len(ids)
        return row
