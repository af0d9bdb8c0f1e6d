"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
The signature also contains how many tokens the last block holds. That number changes with every token, so the end of every row is
built again, as a tensor from a list, in every step. The tables are right.
"""
from collections import namedtuple
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

Signature = namedtuple("Signature", "blocks last filled")


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def signature(self, ids: list[int]) -> Signature:
        """All that can be different about the end of a list."""
        if not ids:
            return Signature(0, -1, -1)
        return Signature(len(ids), ids[-1], self.kv.info(ids[-1]).length)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [[row, Signature(0, -1, -1)] for row in rows]
        kept = table.row_cache[layer_idx]
        row, before = kept
        ids = table[layer_idx]
        now = self.signature(ids)
        if now != before:
            start = max(before.blocks - 1, 0)
            row[start : now.blocks] = torch.tensor(
                [block_id - offset for block_id in ids[start:]], dtype=torch.int32
            )
            kept[1] = now
        return row
