"""lesson: 036
verdict: right
cause: right
shows: cpu
A small class for a kept row, which says by itself from which place on a list differs from what it shows; layers are made
when they are first asked for.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass(slots=True)
class KeptRow:
    entries: Tensor
    count: int = 0
    newest: int | None = None

    @classmethod
    def of_width(cls, width: int) -> KeptRow:
        return cls(torch.zeros(width, dtype=torch.int32))

    def stale_places(self, ids: list[int]) -> range:
        """Which places must be written so that the row shows these ids."""
        if len(ids) > self.count:
            copied = self.count > 0 and ids[self.count - 1] != self.newest
            return range(self.count - copied, len(ids))
        copied = bool(ids) and ids[-1] != self.newest
        return range(len(ids) - copied, len(ids))

    def show(self, ids: list[int], first_id: int) -> Tensor:
        for place in self.stale_places(ids):
            self.entries[place] = ids[place] - first_id
        self.count, self.newest = len(ids), ids[-1] if ids else None
        return self.entries


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def rows(self, sessions: Sequence[InferenceSession]) -> Iterator[Tensor]:
        for layer_idx in range(self.kv.num_layers):
            for session in sessions:
                yield self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer,
                    layer_idx=layer_idx,
                    offset=layer_idx * self.kv.num_blocks,
                )

    def __call__(self, sessions: Sequence[InferenceSession]) -> Tensor:
        staged = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        rows = self.rows(sessions)
        for of_layer in staged:
            torch.stack(list(islice(rows, len(sessions))), out=of_layer)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> Tensor:
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        kept = table.row_cache[layer_idx]
        if kept is None:
            kept = table.row_cache[layer_idx] = KeptRow.of_width(self.max_blocks)
        return kept.show(table[layer_idx], offset)
