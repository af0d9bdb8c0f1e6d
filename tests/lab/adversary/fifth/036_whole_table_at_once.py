"""lesson: 036
verdict: right
cause: right
shows: cpu
A table's rows of all layers are one int32 tensor, with one NumPy view; the signatures are two plain lists. A batch is put together with one
stack over all its rows.
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


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv, self.max_blocks = kv, config.max_blocks
        self.L = kv.num_layers
        self.offsets = [kv.num_blocks * layer_idx for layer_idx in range(self.L)]
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            self.L * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        B = len(sessions)
        tables = [session.block_ids_per_layer for session in sessions]
        rows = [
            self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
            for layer_idx, offset in enumerate(self.offsets)
            for table in tables
        ]
        host = self.buffer.host(self.L, B, self.max_blocks)
        torch.stack(rows, out=host.view(self.L * B, self.max_blocks))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            block: np.ndarray = np.zeros((self.L, self.max_blocks), dtype=np.int32)
            # [the rows, the same for NumPy, how many ids each row shows, the last id that it shows]
            table.row_cache = [torch.from_numpy(block), block, [0] * self.L, [-1] * self.L]
        rows, array, counts, lasts = table.row_cache
        ids = table[layer_idx]
        count = len(ids)
        if count and (counts[layer_idx] != count or lasts[layer_idx] != ids[-1]):
            unchanged = max(0, counts[layer_idx] - 1)
            for at in range(unchanged, count):
                array[layer_idx, at] = ids[at] - offset
            counts[layer_idx], lasts[layer_idx] = count, ids[-1]
        return rows[layer_idx]
