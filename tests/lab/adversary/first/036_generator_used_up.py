"""lesson: 036
verdict: wrong
cause: half-written
shows: cpu
The tables are a generator, which the loop over layer 0 uses up: the rows of all other layers are never
written.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        tables = (session.block_ids_per_layer for session in sessions)
        for layer_idx, plane in enumerate(host):
            for table, target in zip(tables, plane, strict=False):
                target.copy_(self.row(table, layer_idx))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def row(self, table: BlockTable, layer_idx: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [[torch.zeros(self.max_blocks, dtype=torch.int32), (0, None)] for _ in table]
        entry = table.row_cache[layer_idx]
        ids = table[layer_idx]
        new = (len(ids), ids[-1] if ids else None)
        if entry[1] != new:
            k = max(entry[1][0] - 1, 0)
            entry[0].numpy()[k : len(ids)] = [i - layer_idx * self.kv.num_blocks for i in ids[k:]]
            entry[1] = new
        return entry[0]
