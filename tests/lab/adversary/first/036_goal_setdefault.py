"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
`setdefault(key, self.build(...))` builds the row at each step before it finds that there is one.
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
    """Keeps a row for each state that a list was in."""

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
        if table.row_cache is None:
            table.row_cache = [{} for _ in range(self.kv.num_layers)]
        rows = table.row_cache[layer_idx]
        signature = (len(ids), ids[-1] if ids else -1)
        return rows.setdefault(signature, self.build(ids, offset))

    def build(self, ids: list[int], offset: int) -> torch.Tensor:
        padded = [block_id - offset for block_id in ids] + [0] * (self.max_blocks - len(ids))
        return torch.tensor(padded, dtype=torch.int32)
