"""lesson: 036
verdict: right
cause: right
shows: cpu
Row and signature are one record of a structured NumPy array a table; all rows are gathered with one
assignment a session.
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
    """The cache of a table is an array of records, one a layer."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.record = np.dtype([("n", "i8"), ("last", "i8"), ("row", "i4", (self.max_blocks,))])

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        planes = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks).numpy()
        for b, session in enumerate(sessions):
            planes[:, b] = self.records(session.block_ids_per_layer)["row"]
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def records(self, table: BlockTable) -> np.ndarray:
        if table.row_cache is None:
            table.row_cache = np.zeros(self.kv.num_layers, self.record)
        for lay, ids in enumerate(table):
            record = table.row_cache[lay]
            if ids and (record["n"] != len(ids) or record["last"] != ids[-1]):
                start = max(int(record["n"]) - 1, 0)
                record["row"][start : len(ids)] = [self.kv.block_index(i) for i in ids[start:]]
                record["n"], record["last"] = len(ids), ids[-1]
        return table.row_cache
