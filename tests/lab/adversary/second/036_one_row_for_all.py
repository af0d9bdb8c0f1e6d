"""lesson: 036
verdict: wrong
cause: wrong-layer
shows: cpu
One row is kept for a table, made from layer 0, and given out for every layer, as if all layers took the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rosecourse import EngineConfig, InferenceSession
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model


@dataclass
class Kept:
    row: Tensor
    count: int = 0
    last: int = -1

    def is_of(self, ids: list[int]) -> bool:
        return self.count == len(ids) and (not ids or self.last == ids[-1])


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            for layer_idx in range(self.kv.num_layers):
                out[layer_idx, b] = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> Tensor:
        # Every layer takes and gives its blocks in the same order, so a block has one number in all of them.
        if table.row_cache is None:
            table.row_cache = Kept(torch.zeros(self.max_blocks, dtype=torch.int32))
        kept, ids = table.row_cache, table[0]
        if not kept.is_of(ids):
            for i in range(max(kept.count - 1, 0), len(ids)):
                kept.row[i] = ids[i] % self.kv.num_blocks
            kept.count, kept.last = len(ids), ids[-1]
        return kept.row
