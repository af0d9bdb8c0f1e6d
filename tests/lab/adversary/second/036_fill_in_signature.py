"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
The signature also holds the tokens of the last block, which grow with every step: every row is built at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class Signature(NamedTuple):
    num_blocks: int
    last_id: int
    start: int
    length: int
    owners: int


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for b, session in enumerate(sessions):
                table = session.block_ids_per_layer
                tables_cpu[layer_idx, b].copy_(
                    self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def signature(self, ids: list[int]) -> Signature | None:
        """All that is known of the last block: if any of it changes, the row is not trusted."""
        if not ids:
            return None
        info = self.kv.info(ids[-1])
        return Signature(len(ids), ids[-1], info.start, info.length, info.owners)

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = {}
        ids = table[layer_idx]
        signature = self.signature(ids)
        if layer_idx in table.row_cache and table.row_cache[layer_idx][0] == signature:
            return table.row_cache[layer_idx][1]
        row = torch.zeros(self.max_blocks, dtype=torch.int32)
        row[: len(ids)] = torch.tensor([block_id - offset for block_id in ids], dtype=torch.int32)
        table.row_cache[layer_idx] = (signature, row)
        return row
