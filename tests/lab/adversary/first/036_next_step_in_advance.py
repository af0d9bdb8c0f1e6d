"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
The tables of the next step are put together at the end of a call, before the append has begun or copied a
block.
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


class MyBlockTables:
    """Prepares the next step's tables while the device is busy with this one's."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.ready: tuple[list[weakref.ref], torch.Tensor] | None = None

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        tables = [session.block_ids_per_layer for session in sessions]
        if self.ready is not None and [ref() for ref in self.ready[0]] == tables:
            stacked = self.ready[1]
        else:
            stacked = self.stacked(tables)
        self.buffer.host(*stacked.shape).copy_(stacked)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            on_device = self.buffer.to_device()
        self.ready = ([weakref.ref(table) for table in tables], self.stacked(tables))
        return on_device

    def stacked(self, tables: list[BlockTable]) -> torch.Tensor:
        return torch.stack([self.rows(table) for table in tables], dim=1)

    def rows(self, table: BlockTable) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [torch.zeros(len(table), self.max_blocks, dtype=torch.int32), [(0, -1)] * len(table)]
        matrix, known = table.row_cache
        for lay, ids in enumerate(table):
            if ids and known[lay] != (len(ids), ids[-1]):
                k = max(known[lay][0] - 1, 0)
                matrix[lay].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
                known[lay] = (len(ids), ids[-1])
        return matrix
