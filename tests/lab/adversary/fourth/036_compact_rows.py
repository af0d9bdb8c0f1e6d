"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
Rows are kept as int16, which halves them: block numbers from 32768 on wrap around and become negative.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class CompactRow:
    __slots__ = ("count", "ids", "last")

    def __init__(self, width: int) -> None:
        self.ids = np.zeros(width, dtype=np.int16)
        self.count, self.last = 0, None

    def update(self, ids: list[int], offset: int) -> None:
        if ids and (self.count, self.last) != (len(ids), ids[-1]):
            start = max(self.count - 1, 0)
            self.ids[start : len(ids)] = np.asarray(ids[start:]) - offset
            self.count, self.last = len(ids), ids[-1]


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for b, session in enumerate(sessions):
                host[layer_idx, b] = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [CompactRow(self.max_blocks) for _ in range(self.kv.num_layers)]
        kept = table.row_cache[layer_idx]
        kept.update(table[layer_idx], offset)
        return torch.from_numpy(kept.ids).to(torch.int32)
