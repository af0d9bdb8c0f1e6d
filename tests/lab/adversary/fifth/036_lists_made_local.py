"""lesson: 036
verdict: wrong
cause: inputs-changed
shows: cpu
The global ids in the session's own lists are replaced by block numbers of the layer, so that they need not be converted again. The lists
belong to the session and its cache: from layer 1 on the append then finds the books of a block of layer 0.
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
    """Each id is converted once, where it stands; after that a row is a plain copy of the list's end."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for b, session in enumerate(sessions):
                block_tables_cpu[layer_idx, b] = self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        """One session's row of one layer, int32 [max_blocks]."""
        if table.row_cache is None:
            table.row_cache = [
                (torch.zeros(self.max_blocks, dtype=torch.int32), (0, -1)) for _ in table
            ]
        row, (count, last) = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if ids and (len(ids) != count or ids[-1] != last):
            start = count - 1 if count else 0
            for i in range(start, len(ids)):
                if ids[i] >= offset:  # still a global id
                    ids[i] -= offset
            row.numpy()[start : len(ids)] = ids[start:]
            table.row_cache[layer_idx] = row, (len(ids), ids[-1])
        return row
