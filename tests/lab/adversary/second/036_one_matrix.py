"""lesson: 036
verdict: right
cause: right
shows: cpu
One matrix [L, max_blocks] a table, whose NumPy view is opened once, and single cells of it are set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class _Matrix:
    """The rows of one block table. It dies with the table."""

    def __init__(self, num_layers: int, max_blocks: int) -> None:
        matrix = torch.zeros(num_layers, max_blocks, dtype=torch.int32)
        self.rows = matrix.unbind()
        self.cells = list(matrix.numpy())  # views of the same memory
        self.filled = [0] * num_layers
        self.last = [-1] * num_layers

    def __getitem__(self, layer: int) -> torch.Tensor:
        return self.rows[layer]

    def is_stale(self, layer: int, ids: list[int]) -> bool:
        return self.filled[layer] != len(ids) or (bool(ids) and self.last[layer] != ids[-1])

    def refresh(self, layer: int, ids: list[int], offset: int) -> None:
        cells, i = self.cells[layer], max(self.filled[layer] - 1, 0)
        while i < len(ids):
            cells[i] = ids[i] - offset
            i += 1
        self.filled[layer], self.last[layer] = len(ids), ids[-1]


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, target in enumerate(host.unbind()):
            torch.cat(list(self._rows(sessions, layer_idx)), out=target.view(-1))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def _rows(self, sessions: Sequence[InferenceSession], layer_idx: int) -> Iterator[torch.Tensor]:
        offset = layer_idx * self.kv.num_blocks
        for session in sessions:
            yield self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = _Matrix(self.kv.num_layers, self.max_blocks)
        matrix, ids = table.row_cache, table[layer_idx]
        if matrix.is_stale(layer_idx, ids):
            matrix.refresh(layer_idx, ids, offset)
        return matrix[layer_idx]
