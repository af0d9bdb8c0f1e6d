"""lesson: 036
verdict: wrong
cause: inputs-changed
shows: cpu
Ids are turned into block numbers in the session's own lists, from which the append then takes blocks of layer 0.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = []
            for session in sessions:
                rows.append(
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                )
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            zeros = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, 0, None) for row in zeros.unbind()]
        row, n, last = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if len(ids) != n or (ids and ids[-1] != last):
            for i in range(max(n - 1, 0), len(ids)):
                if ids[i] >= offset:  # subtract once only
                    ids[i] -= offset
                row[i] = ids[i]
            table.row_cache[layer_idx] = (row, len(ids), ids[-1])
        return row
