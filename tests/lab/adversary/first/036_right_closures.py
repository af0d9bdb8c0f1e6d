"""lesson: 036
verdict: right
cause: right
shows: cpu
The cache of a table is a closure that refreshes one matrix for all layers and gives it back; a stack with
dim=1 puts a batch together.
"""

import weakref
from collections.abc import Callable, Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


def keeper(kv: KVBlockManager, table: BlockTable, width: int) -> Callable[[], torch.Tensor]:
    """Returns a function that returns the table's rows, int32 [L, width], as they are now."""
    rows = torch.zeros(kv.num_layers, width, dtype=torch.int32)
    marks: list[tuple[int, ...]] = [()] * kv.num_layers
    me = weakref.ref(table)

    def store(layer_idx: int, start: int, ids: list[int]) -> None:
        for column, block_id in enumerate(ids[start:], start):
            rows[layer_idx, column].fill_(kv.info(block_id).block_index)

    def refreshed() -> torch.Tensor:
        for layer_idx, ids in enumerate(me()):
            mark = (len(ids), *ids[-1:])
            if mark != marks[layer_idx]:
                store(layer_idx, max(marks[layer_idx][0] - 1, 0) if marks[layer_idx] else 0, ids)
                marks[layer_idx] = mark
        return rows

    return refreshed


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        matrices = []
        for session in sessions:
            table = session.block_ids_per_layer
            if table.row_cache is None:
                table.row_cache = keeper(self.kv, table, self.max_blocks)
            matrices.append(table.row_cache())
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        torch.stack(matrices, dim=1, out=host)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()
