"""lesson: 036
verdict: wrong
cause: inputs-changed
shows: cpu
`ids += [...]` pads the session's own list with zeros: the table then shows blocks that the session does not
own.
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
            table.row_cache = {}
        ids = table[layer_idx]
        signature = len(ids), ids[-1] if ids else -1
        if layer_idx not in table.row_cache or table.row_cache[layer_idx][1] != signature:
            ids += [offset] * (self.max_blocks - len(ids))
            row = torch.zeros(self.max_blocks, dtype=torch.int32)
            row.numpy()[:] = [block_id - offset for block_id in ids]
            table.row_cache[layer_idx] = row, signature
        return table.row_cache[layer_idx][0]
