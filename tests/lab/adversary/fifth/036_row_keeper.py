"""lesson: 036
verdict: right
cause: right
shows: cpu
A small class keeps a row and a Python copy of the list that it shows; on a change it goes back from the end to where
the two lists begin to differ, and writes from there.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class RowKeeper:
    """The row of one layer of one table."""

    __slots__ = ("offset", "row", "shown", "view")

    def __init__(self, width: int, offset: int) -> None:
        self.row = torch.zeros(width, dtype=torch.int32)
        self.view = self.row.numpy()
        self.offset = offset
        self.shown: list[int] = []

    def is_current(self, ids: list[int]) -> bool:
        return len(self.shown) == len(ids) and self.shown[-1:] == ids[-1:]

    def bring_up_to_date(self, ids: list[int]) -> None:
        same = min(len(self.shown), len(ids))
        while same and self.shown[same - 1] != ids[same - 1]:
            same -= 1
        del self.shown[same:]
        for place in range(same, len(ids)):
            self.view[place] = ids[place] - self.offset
            self.shown.append(ids[place])


class MyBlockTables:
    """Where, for each layer and session, the blocks lie: int32 [L, B, max_blocks]."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        elements = kv.num_layers * config.max_batch_size * self.max_blocks
        self.buffer = StagingBuffer(elements, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical
        block of each logical one, 0 past the last."""
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for position, session in enumerate(sessions):
                row = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
                host[layer_idx, position].copy_(row)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        """One session's row of one layer, int32 [max_blocks]."""
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        keeper = table.row_cache[layer_idx]
        if keeper is None:
            keeper = RowKeeper(self.max_blocks, offset)
            table.row_cache[layer_idx] = keeper
        ids = table[layer_idx]
        if not keeper.is_current(ids):
            keeper.bring_up_to_date(ids)
        return keeper.row
