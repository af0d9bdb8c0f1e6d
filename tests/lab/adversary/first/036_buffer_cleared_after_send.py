"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: cpu
Clears the host buffer for the next step right after the copy has been started; on a CPU the two are one
tensor, so the tables are all zeros.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for lay, layer in enumerate(host):
            for b, session in enumerate(sessions):
                row, count = self.row(session.block_ids_per_layer, lay)
                layer[b, :count] = row[:count]  # the rest is zero already
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            on_device = self.buffer.to_device()
        host.zero_()
        return on_device

    def row(self, table: BlockTable, lay: int) -> tuple[torch.Tensor, int]:
        if table.row_cache is None:
            table.row_cache = [[torch.empty(self.max_blocks, dtype=torch.int32), 0, -1] for _ in table]
        entry, ids = table.row_cache[lay], table[lay]
        if ids and entry[1:] != [len(ids), ids[-1]]:
            k = max(entry[1] - 1, 0)
            entry[0].numpy()[k : len(ids)] = [i - lay * self.kv.num_blocks for i in ids[k:]]
            entry[1:] = len(ids), ids[-1]
        return entry[0], len(ids)
