"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
The table is as wide as the longest list of the batch instead of `max_blocks`.
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
    """Sends no more columns than are in use."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        width = max(len(ids) for session in sessions for ids in session.block_ids_per_layer)
        out = self.buffer.host(self.kv.num_layers, len(sessions), width)
        for layer in range(self.kv.num_layers):
            rows = [self.row(session.block_ids_per_layer, layer)[:width] for session in sessions]
            torch.stack(rows, out=out[layer])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def row(self, table: BlockTable, layer: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [(torch.zeros(self.max_blocks, dtype=torch.int32), ()) for _ in table]
        row, sig = table.row_cache[layer]
        ids = table[layer]
        now = (len(ids), *ids[-1:])
        if now != sig:
            start = max(sig[0] - 1, 0) if sig else 0
            row.numpy()[start : len(ids)] = [i - layer * self.kv.num_blocks for i in ids[start:]]
            table.row_cache[layer] = (row, now)
        return row
