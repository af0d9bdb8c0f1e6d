"""lesson: 036
verdict: wrong
cause: hangs
shows: cpu
A plain Lock is taken in `__call__` and again when a row has changed, by the same thread: it waits for itself
for ever.
"""

import threading
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Safe if two threads step at once."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.lock = threading.Lock()

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        with self.lock:
            host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
            for lay in range(self.kv.num_layers):
                torch.stack([self.row(s.block_ids_per_layer, lay) for s in sessions], out=host[lay])
            with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
                return self.buffer.to_device()

    def row(self, table: BlockTable, lay: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [(torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1) for _ in table]
        row, n, last = table.row_cache[lay]
        ids = table[lay]
        if ids and n and (n, last) != (len(ids), ids[-1]):
            with self.lock:
                self.write(table, lay, row, n - 1)
        elif ids and not n:
            self.write(table, lay, row, 0)
        return row

    def write(self, table: BlockTable, lay: int, row: torch.Tensor, start: int) -> None:
        ids = table[lay]
        row.numpy()[start : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[start:]]
        table.row_cache[lay] = (row, len(ids), ids[-1])
