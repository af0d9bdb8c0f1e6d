"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
The buffer holds 16 sessions, which is the default of `max_batch_size`: a batch of 17 or more does not fit.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

MAX_BATCH = 16


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * MAX_BATCH * self.max_blocks, torch.int32, kv.device)

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
            table.row_cache = [(torch.zeros(self.max_blocks, dtype=torch.int32), 0, None) for _ in table]
        row, size, last = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if len(ids) != size or ids[-1:] != [last]:
            start = max(size - 1, 0)
            row.numpy()[start : len(ids)] = [i - offset for i in ids[start:]]
            table.row_cache[layer_idx] = (row, len(ids), ids[-1] if ids else None)
        return row
