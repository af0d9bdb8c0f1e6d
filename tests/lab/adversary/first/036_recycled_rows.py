"""lesson: 036
verdict: wrong
cause: state-kept
shows: cpu
Rows of tables that are gone are used again for new ones without being cleared: a shorter list shows the
other's blocks behind its last.
"""

import weakref
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class RowPool:
    """Rows are not cheap to make: take them back when a table dies."""

    def __init__(self, width: int) -> None:
        self.width, self.spare = width, []

    def take(self, num: int) -> list[torch.Tensor]:
        while len(self.spare) < num:
            self.spare.append(torch.zeros(self.width, dtype=torch.int32))
        return [self.spare.pop() for _ in range(num)]

    def bind(self, table: BlockTable) -> None:
        rows = self.take(len(table))
        table.row_cache = [[row, 0, -1] for row in rows]
        weakref.finalize(table, self.spare.extend, rows)


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.pool = RowPool(self.max_blocks)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            self.pool.bind(table)
        entry = table.row_cache[layer_idx]
        row, known, last = entry
        ids = table[layer_idx]
        if ids and (len(ids) != known or ids[-1] != last):
            start = max(known - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            entry[1:] = len(ids), ids[-1]
        return row
