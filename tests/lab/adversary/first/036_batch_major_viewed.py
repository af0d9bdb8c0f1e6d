"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
The rows are put together session by session and then viewed as [L, B, ...], where a transposition is needed.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """A session's rows are one matrix; a batch is one stack of them."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(len(sessions), self.kv.num_layers, self.max_blocks)
        torch.stack([self.matrix(session.block_ids_per_layer) for session in sessions], out=host)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device().view(self.kv.num_layers, len(sessions), self.max_blocks)

    def matrix(self, table: BlockTable) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [torch.zeros(len(table), self.max_blocks, dtype=torch.int32), [(0, -1) for _ in table]]
        m, sigs = table.row_cache
        for lay, (ids, (n, last)) in enumerate(zip(table, sigs, strict=True)):
            if ids and (n, last) != (len(ids), ids[-1]):
                n = max(n - 1, 0)
                m[lay].numpy()[n : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[n:]]
                sigs[lay] = (len(ids), ids[-1])
        return m
