"""lesson: 036
verdict: wrong
cause: raises
shows: cpu
The signature takes ids[-1] without asking whether there is one: a session without a block raises IndexError.
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
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx, target in enumerate(block_tables_cpu):
            row_of = lambda t: self.get_paged_block_table_row_cpu(  # noqa: E731
                t, layer_idx=layer_idx, offset=layer_idx * self.kv.num_blocks  # noqa: B023
            )
            torch.stack(list(map(row_of, tables)), out=target)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        cache = table.row_cache
        if cache is None:
            cache = table.row_cache = [None] * self.kv.num_layers
        ids = table[layer_idx]
        signature = (len(ids), ids[-1])
        if cache[layer_idx] is None:
            row, old_length = torch.zeros(self.max_blocks, dtype=torch.int32), 1
        else:
            row, (old_length, old_last) = cache[layer_idx]
            if (old_length, old_last) == signature:
                return row
        row.numpy()[old_length - 1 : len(ids)] = [i - offset for i in ids[old_length - 1 :]]
        cache[layer_idx] = (row, signature)
        return row
