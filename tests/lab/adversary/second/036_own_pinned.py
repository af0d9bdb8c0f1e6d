"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: disclosed
Instead of the StagingBuffer a pinned tensor of its own, sent with non_blocking=True and filled again without a wait.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """One pinned tensor for the whole step, filled in place row by row."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        on_gpu = kv.device.type == "cuda"
        size = kv.num_layers * config.max_batch_size * self.max_blocks
        self.pinned = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self.twin = torch.zeros(size, dtype=torch.int32, device=kv.device) if on_gpu else self.pinned

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        shape = (self.kv.num_layers, len(sessions), self.max_blocks)
        n = shape[0] * shape[1] * shape[2]
        staged = self.pinned[:n].view(shape)
        for layer_idx in range(self.kv.num_layers):
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
                for session in sessions
            ]
            torch.stack(rows, out=staged[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            target = self.twin[:n]
            if target.data_ptr() != self.pinned.data_ptr():
                target.copy_(self.pinned[:n], non_blocking=True)
            return target.view(shape)

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            block = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [[row, 0, -1] for row in block]
        entry = table.row_cache[layer_idx]
        row, length, last = entry
        ids = table[layer_idx]
        newest = ids[-1] if ids else -1
        if length != len(ids) or last != newest:
            for i in range(max(length - 1, 0), len(ids)):
                row[i] = ids[i] - offset
            entry[1:] = len(ids), newest
        return row
