"""lesson: 036
verdict: right
cause: right
shows: cpu
Functional: what is kept of a layer is a function from the list to the row, which remembers in its closure what it has
written.
"""
from collections.abc import Callable, Sequence
from functools import partial

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

Row = Callable[[list[int]], torch.Tensor]


def new_row(width: int, offset: int) -> Row:
    row = torch.zeros(width, dtype=torch.int32)
    entries = memoryview(row.numpy())
    count, last = 0, None

    def of(ids: list[int]) -> torch.Tensor:
        nonlocal count, last
        newest = ids[-1] if ids else None
        if newest != last or len(ids) != count:
            if 0 < count <= len(ids):
                entries[count - 1] = ids[count - 1] - offset  # a copy may have come in its place
            for place, block_id in enumerate(ids[count:], count):
                entries[place] = block_id - offset
            count, last = len(ids), newest
        return row

    return of


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.width = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.width, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        by_layer = self.buffer.host(self.kv.num_layers, len(sessions), self.width).unbind()
        for layer_idx, out in enumerate(by_layer):
            row = partial(
                self.get_paged_block_table_row_cpu,
                layer_idx=layer_idx,
                offset=layer_idx * self.kv.num_blocks,
            )
            torch.stack([row(session.block_ids_per_layer) for session in sessions], out=out)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [
                new_row(self.width, number * self.kv.num_blocks) for number in range(len(table))
            ]
        return table.row_cache[layer_idx](table[layer_idx])
