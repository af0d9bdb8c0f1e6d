"""lesson: 036
verdict: wrong
cause: half-written
shows: cpu
Goes from the end of the list to the front until the row agrees. An unwritten entry is 0, so it agrees with block 0:
where block 0 stands inside the list of a new table, what is before it is never entered.
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


def bring_up_to_date(row: np.ndarray, ids: list[int], offset: int) -> None:
    """Lists change at their end only: no signature is needed, the row itself says how far it is right."""
    place = len(ids) - 1
    while place >= 0 and row[place] != ids[place] - offset:
        row[place] = ids[place] - offset
        place -= 1


class MyBlockTables:
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
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, row.numpy()) for row in rows]
        row, writable = table.row_cache[layer_idx]
        bring_up_to_date(writable, table[layer_idx], offset)
        return row
