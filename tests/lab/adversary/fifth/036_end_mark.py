"""lesson: 036
verdict: wrong
cause: raises
shows: cpu
Behind the last block of a renewed row a 0 is written as an end mark. A session that comes to its last possible block has no place behind it:
IndexError.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        num_layers, num_blocks = self.kv.num_layers, self.kv.num_blocks
        view = self.buffer.host(num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(num_layers):
            torch.stack(
                tuple(
                    self.get_paged_block_table_row_cpu(
                        s.block_ids_per_layer, layer_idx=layer_idx, offset=layer_idx * num_blocks
                    )
                    for s in sessions
                ),
                out=view[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        ids = table[layer_idx]
        n, last = len(ids), ids[-1] if ids else -1
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        if table.row_cache[layer_idx] is None:
            entries = torch.empty(self.max_blocks, dtype=torch.int32)
            entries.zero_()
            done = 0
        else:
            entries, seen_n, seen_last = table.row_cache[layer_idx]
            if (seen_n, seen_last) == (n, last):
                return entries
            done = max(seen_n - 1, 0)  # all of these are as they were
        array = entries.numpy()
        for i in range(done, n):
            array[i] = ids[i] - offset
        array[n] = 0  # here it ends
        table.row_cache[layer_idx] = entries, n, last
        return entries
