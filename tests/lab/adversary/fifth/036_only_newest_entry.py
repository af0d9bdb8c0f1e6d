"""lesson: 036
verdict: wrong
cause: half-written
shows: cpu
Whenever a list has changed, the entry of its last block is written and no other. A table that has several blocks when it is
seen for the first time (a long prompt, a fork) gets its last entry only; the others stay 0.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

NOTHING = (0, None)


class MyBlockTables:
    """A new block and a copy-on-write have one thing in common: it is the last entry that changes."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv, self.max_blocks = kv, config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        L, B = self.kv.num_layers, len(sessions)
        host = self.buffer.host(L, B, self.max_blocks)
        get = self.get_paged_block_table_row_cpu
        for layer_idx, of_layer in enumerate(host):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [get(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset) for s in sessions],
                out=of_layer,
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            empty = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, NOTHING) for row in empty]
        row, signature = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if ids and (len(ids), ids[-1]) != signature:
            row[len(ids) - 1] = ids[-1] - offset
            table.row_cache[layer_idx] = row, (len(ids), ids[-1])
        return row
