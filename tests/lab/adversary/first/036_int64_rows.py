"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
Rows and buffer are int64, as for an index in PyTorch; the table is int32.
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
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.long, kv.device)

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
        table.row_cache = table.row_cache or {}
        row, n, last = table.row_cache.get(layer_idx) or (torch.zeros(self.max_blocks, dtype=torch.long), 0, -1)
        ids = table[layer_idx]
        if ids and (n, last) != (len(ids), ids[-1]):
            n = n - 1 if n else 0
            row.numpy()[n : len(ids)] = [i - offset for i in ids[n:]]
        table.row_cache[layer_idx] = (row, len(ids), ids[-1] if ids else -1)
        return row
