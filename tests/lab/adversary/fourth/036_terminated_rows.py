"""lesson: 036
verdict: wrong
cause: raises
shows: cpu
Writes a 0 behind the last block as well, for which a row that is full has no place: the session that begins its last
possible block ends the step with a ValueError.
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
    """Kept rows, each ended by a 0."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for session in sessions
                ],
                out=block_tables_cpu[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        ids = table[layer_idx]
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        row, n, last = table.row_cache[layer_idx] or (torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1)
        if (n, last) != (len(ids), ids[-1] if ids else -1):
            keep = max(n - 1, 0)
            ended = [block_id - offset for block_id in ids[keep:]] + [0]
            row.numpy()[keep : keep + len(ended)] = ended
        table.row_cache[layer_idx] = (row, len(ids), ids[-1] if ids else -1)
        return row
