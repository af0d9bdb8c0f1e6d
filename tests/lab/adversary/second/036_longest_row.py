"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
The table is as wide as the longest list of the batch ("nobody reads the padding"), where max_blocks is promised.
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
    """Kept rows; and only as many columns go to the device as somebody has blocks."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        width = max(len(session.block_ids_per_layer[0]) for session in sessions)
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), width)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)[:width]
                for s in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [
                (torch.zeros(self.max_blocks, dtype=torch.int32), (-1, -1)) for _ in range(self.kv.num_layers)
            ]
        row, old = table.row_cache[layer_idx]
        ids = table[layer_idx]
        new = (len(ids), ids[-1] if ids else -1)
        if new != old:
            begin = max(old[0] - 1, 0)
            row.numpy()[begin : len(ids)] = [i - offset for i in ids[begin:]]
            table.row_cache[layer_idx] = (row, new)
        return row
