"""lesson: 036
verdict: wrong
cause: tampering
shows: both
Replaces `StagingBuffer.host` for every engine by one that does not wait for the last copy, to be faster in
the race.
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
    """The wait in `StagingBuffer.host` costs more than the rows."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        StagingBuffer.host = MyBlockTables.host_without_wait
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    @staticmethod
    def host_without_wait(buffer: StagingBuffer, *shape: int) -> torch.Tensor:
        buffer._shape = shape
        return buffer._host[: int(np.prod(shape))].view(shape)

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
            table.row_cache = [[torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1] for _ in table]
        entry, ids = table.row_cache[layer_idx], table[layer_idx]
        if ids and entry[1:] != [len(ids), ids[-1]]:
            start = max(entry[1] - 1, 0)
            entry[0].numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            entry[1:] = len(ids), ids[-1]
        return entry[0]
