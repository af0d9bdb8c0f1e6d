"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
If the batch has the same tables as last time and none has become longer, the last tensor is handed out again: a
copy-on-write replaces a block without changing a length, and stays unseen until somebody's next block.
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
    """Two levels: the tensor of the whole step is kept while nothing has grown; below it each row is kept."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.last_step: list[tuple[BlockTable, int]] = []
        self.last_result: torch.Tensor | None = None

    def nothing_has_grown(self, sessions: Sequence[InferenceSession]) -> bool:
        if self.last_result is None or len(sessions) != len(self.last_step):
            return False
        for session, (table, num_blocks) in zip(sessions, self.last_step):
            if session.block_ids_per_layer is not table or sum(map(len, table)) != num_blocks:
                return False
        return True

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        if self.nothing_has_grown(sessions):
            return self.last_result  # it is on the device already
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for s in sessions
            ]
            torch.stack(rows, out=host[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            self.last_result = self.buffer.to_device()
        self.last_step = [(s.block_ids_per_layer, sum(map(len, s.block_ids_per_layer))) for s in sessions]
        return self.last_result

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [
                [torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1] for _ in range(self.kv.num_layers)
            ]
        entry = table.row_cache[layer_idx]
        row, count, last = entry
        ids = table[layer_idx]
        if ids and (count != len(ids) or last != ids[-1]):
            first = max(0, count - 1)
            row.numpy()[first : len(ids)] = [i - offset for i in ids[first:]]
            entry[1:] = len(ids), ids[-1]
        return row
