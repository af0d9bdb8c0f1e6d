"""lesson: 036
verdict: wrong
cause: row-shape
shows: gpu
Returns the host side of the buffer and not what `to_device` gives: on CUDA the table is then in the wrong
memory.
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
        tables = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for s in sessions
                ],
                out=tables[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            self.buffer.to_device()
        return tables

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [(row, (0, None)) for row in torch.zeros(len(table), self.max_blocks, dtype=torch.int32)]
        row, (count, last) = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if ids and (len(ids), ids[-1]) != (count, last):
            at = count - 1 if count else 0
            row.numpy()[at : len(ids)] = [i - offset for i in ids[at:]]
            table.row_cache[layer_idx] = (row, (len(ids), ids[-1]))
        return row
