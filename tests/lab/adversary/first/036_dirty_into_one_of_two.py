"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
Two staging buffers in turns, but a changed row is written only into the one that is on: the other shows the
old row at the next step.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Only changed rows are written into the buffer: the others still stand in it."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        size = kv.num_layers * config.max_batch_size * self.max_blocks
        self.buffers = [self.buffer, StagingBuffer(size, torch.int32, kv.device)]
        self.turn = 0
        self.batch: tuple[int, ...] = ()

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        self.turn ^= 1
        hosts = [buffer.host(self.kv.num_layers, len(sessions), self.max_blocks) for buffer in self.buffers]
        tables = [session.block_ids_per_layer for session in sessions]
        fresh = [table.row_cache is None for table in tables]
        batch = tuple(id(table) for table in tables)
        everything = batch != self.batch or any(fresh)
        self.batch = batch
        for b, table in enumerate(tables):
            if table.row_cache is None:
                table.row_cache = [(0, -1)] * len(table)
            for lay, ids in enumerate(table):
                known, last = table.row_cache[lay]
                if everything:
                    for host in hosts:
                        host[lay, b] = 0
                        host[lay, b].numpy()[: len(ids)] = [i - lay * self.kv.num_blocks for i in ids]
                elif ids and (known, last) != (len(ids), ids[-1]):
                    start = max(known - 1, 0)
                    new = [i - lay * self.kv.num_blocks for i in ids[start:]]
                    hosts[self.turn][lay, b].numpy()[start : len(ids)] = new
                table.row_cache[lay] = (len(ids), ids[-1] if ids else -1)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffers[self.turn].to_device()
