"""lesson: 036
verdict: wrong
cause: wrong-block
shows: cpu
The first build subtracts the layer's offset; the update of the tail forgets it and writes global ids.
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
    """Rows live on the table; the tail is patched."""

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
        signature = (len(ids), ids[-1] if ids else None)
        cache = table.row_cache
        if cache is None:
            cache = table.row_cache = {}
        if layer_idx not in cache:
            row = torch.zeros(self.max_blocks, dtype=torch.int32)
            row[: len(ids)] = torch.tensor([block_id - offset for block_id in ids], dtype=torch.int32)
            cache[layer_idx] = (row, signature)
            return row
        row, old = cache[layer_idx]
        if old != signature:
            start = max(old[0] - 1, 0)
            row.numpy()[start : len(ids)] = ids[start:]
            cache[layer_idx] = (row, signature)
        return row
