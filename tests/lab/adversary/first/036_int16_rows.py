"""lesson: 036
verdict: wrong
cause: size-limit
shows: cpu
The kept rows are int16, to halve the memory: block indices from 32768 on wrap around and become negative.
"""

from collections.abc import Sequence

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Rows in half the space; they are widened when they are copied into the buffer."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks).numpy()
        for b, session in enumerate(sessions):
            for lay in range(self.kv.num_layers):
                host[lay, b] = self.row(session.block_ids_per_layer, lay)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def row(self, table: BlockTable, lay: int) -> np.ndarray:
        if table.row_cache is None:
            table.row_cache = [[np.zeros(self.max_blocks, np.int16), 0, -1] for _ in table]
        kept, ids = table.row_cache[lay], table[lay]
        if ids and (kept[1] != len(ids) or kept[2] != ids[-1]):
            start = max(kept[1] - 1, 0)
            local = np.array(ids[start:]) - lay * self.kv.num_blocks
            kept[0][start : len(ids)] = local.astype(np.int16)
            kept[1:] = len(ids), ids[-1]
        return kept[0]
