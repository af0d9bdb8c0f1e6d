"""lesson: 036
verdict: wrong
cause: raises
shows: cpu
Writes a 0 behind the last block, for which there is no place when the row is full: IndexError in the last
block of a session of full length.
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
    """Rows need not be cleared if each ends with a zero... so the rest is cleared once and the end each time."""

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
        if table.row_cache is None:
            table.row_cache = [[torch.zeros(self.max_blocks, dtype=torch.int32), 0, None] for _ in table]
        kept = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if ids and kept[1:] != [len(ids), ids[-1]]:
            start = max(kept[1] - 1, 0)
            row = kept[0].numpy()
            row[start : len(ids)] = [i - offset for i in ids[start:]]
            row[len(ids)] = 0
            kept[1:] = len(ids), ids[-1]
        return kept[0]
