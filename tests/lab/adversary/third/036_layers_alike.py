"""lesson: 036
verdict: wrong
cause: wrong-layer
shows: cpu
Keeps one row a session, that of layer 0, and shows it for all layers, because they take the same block numbers as long
as their free lists are in the same order. Each layer has a pool of its own, and nobody promises that order.
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
    """I printed the rows of all layers: they are equal. So one row a session is enough, and one stack a step."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        rows = [self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=0, offset=0) for s in sessions]
        host[:] = torch.stack(rows)  # the same for every layer
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        ids = table[0]
        if table.row_cache is None:
            table.row_cache = [torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1]
        row, count, last = table.row_cache
        if ids and (count != len(ids) or last != ids[-1]):
            begin = max(count - 1, 0)
            row.numpy()[begin : len(ids)] = ids[begin:]
            table.row_cache[1:] = [len(ids), ids[-1]]
        return row
