"""lesson: 036
verdict: wrong
cause: wrong-block
shows: cpu
One function a layer is made in a loop, and each takes the loop's variable as it is in the end: all subtract
the offset of the last layer.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.to_local = []
        for layer_idx in range(kv.num_layers):
            self.to_local.append(lambda ids: [i - layer_idx * kv.num_blocks for i in ids])  # noqa: B023

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for b, session in enumerate(sessions):
            table = session.block_ids_per_layer
            if table.row_cache is None:
                table.row_cache = [[torch.zeros(self.max_blocks, dtype=torch.int32), 0, -1] for _ in table]
            for kept, ids, to_local, target in zip(table.row_cache, table, self.to_local, host[:, b], strict=True):
                if ids and kept[1:] != [len(ids), ids[-1]]:
                    start = max(kept[1] - 1, 0)
                    kept[0].numpy()[start : len(ids)] = to_local(ids[start:])
                    kept[1:] = len(ids), ids[-1]
                target.copy_(kept[0])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()
