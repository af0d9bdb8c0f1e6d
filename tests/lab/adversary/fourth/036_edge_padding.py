"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
Past the last block a row repeats the last block instead of showing 0. The tokens are right, for nobody reads there.
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
    """Rows kept; a read ahead past the end of a row meets a block that is in the cache anyway."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, layer_out in enumerate(block_tables_cpu):
            offset = layer_idx * self.kv.num_blocks
            for row_out, session in zip(layer_out, sessions):
                row_out.copy_(
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        table.row_cache = table.row_cache or [
            (torch.zeros(self.max_blocks, dtype=torch.int32), (0, -1)) for _ in range(self.kv.num_layers)
        ]
        row, (n_old, last_old) = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if not ids or (len(ids), ids[-1]) == (n_old, last_old):
            return row
        entries = row.numpy()
        for place in range(max(n_old - 1, 0), len(ids)):
            entries[place] = ids[place] - offset
        entries[len(ids) :] = ids[-1] - offset
        table.row_cache[layer_idx] = (row, (len(ids), ids[-1]))
        return row
