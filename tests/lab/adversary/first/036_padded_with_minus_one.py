"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
New rows are filled with -1 behind the last block, where the table must say 0.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """-1 shows at a glance which entries are unused."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

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
        ids = table[layer_idx]
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        if table.row_cache[layer_idx] is None:
            table.row_cache[layer_idx] = torch.full((self.max_blocks,), -1, dtype=torch.int32), [0, None]
        row, sig = table.row_cache[layer_idx]
        if ids and sig != [len(ids), ids[-1]]:
            at = max(sig[0] - 1, 0)
            row.numpy()[at : len(ids)] = np.subtract(ids[at:], offset)
            sig[:] = len(ids), ids[-1]
        return row
