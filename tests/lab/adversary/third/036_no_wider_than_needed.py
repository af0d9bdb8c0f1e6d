"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
Hands back only as many columns as the longest session has blocks, instead of `max_blocks`. Attention does not mind, but
the table is not [L, B, max_blocks] as promised, and changes its width (and its strides) from step to step.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Kept rows, and nobody has to look at columns that no session uses yet."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        width = max(len(ids) for session in sessions for ids in session.block_ids_per_layer)
        host = self.buffer.host(self.kv.num_layers, len(sessions), width)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = (
                self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for s in sessions
            )
            torch.stack([row[:width] for row in rows], out=host[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        cache = table.row_cache
        if cache is None:
            cache = table.row_cache = [None] * self.kv.num_layers
        if cache[layer_idx] is None:
            cache[layer_idx] = torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1
        row, count, last = cache[layer_idx]
        ids = table[layer_idx]
        if not ids or (len(ids), ids[-1]) == (count, last):
            return row
        view = row.numpy()
        for place in range(max(0, count - 1), len(ids)):
            view[place] = ids[place] - offset
        cache[layer_idx] = row, len(ids), ids[-1]
        return row
