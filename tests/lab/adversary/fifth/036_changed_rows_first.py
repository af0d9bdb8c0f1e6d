"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
The rows that have to be renewed are gathered first and those that are kept after them, and they are stacked in that order. In a step in
which only some of the sessions have a new block, rows stand where other sessions of the batch are.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


def signature(ids: list[int]) -> tuple[int, int]:
    return len(ids), ids[-1] if ids else -1


def is_kept(table: BlockTable, layer_idx: int) -> bool:
    """Whether the row of this layer shows what the list says."""
    if table.row_cache is None:
        return False
    return table.row_cache[layer_idx][1] == signature(table[layer_idx])


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            kept, changed = [], []
            for table in tables:
                (kept if is_kept(table, layer_idx) else changed).append(table)
            renewed = [
                self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
                for table in changed
            ]
            ready = [
                self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
                for table in kept
            ]
            torch.stack(renewed + ready, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, (0, -1)) for row in rows.unbind()]
        if not is_kept(table, layer_idx):
            row, (count, _) = table.row_cache[layer_idx]
            ids = table[layer_idx]
            start = max(count - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            table.row_cache[layer_idx] = (row, signature(ids))
        return table.row_cache[layer_idx][0]
