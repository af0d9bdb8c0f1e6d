"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: gpu
Takes the host side of the buffer once, when it is built, so nothing waits for the last copy before the rows
are rewritten.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.shape = (kv.num_layers, config.max_batch_size, config.max_blocks)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * config.max_blocks, torch.int32, kv.device)
        self.host = self.buffer.host(*self.shape)  # asked for once: saves a call at each step

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        for b, session in enumerate(sessions):
            self.host[:, b] = self.rows(session.block_ids_per_layer)
        return self.buffer.to_device()[:, : len(sessions)].contiguous()

    def rows(self, table: BlockTable) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [torch.zeros(len(table), self.shape[2], dtype=torch.int32), [(0, -1)] * len(table)]
        matrix, signatures = table.row_cache
        for lay, ids in enumerate(table):
            new = (len(ids), ids[-1] if ids else -1)
            if new != signatures[lay]:
                k = max(signatures[lay][0] - 1, 0)
                matrix[lay].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
                signatures[lay] = new
        return matrix
