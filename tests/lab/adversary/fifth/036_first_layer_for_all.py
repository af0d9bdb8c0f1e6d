"""lesson: 036
verdict: wrong
cause: wrong-layer
shows: cpu
The rows are made for layer 0 and sent for every layer. It is right as long as all layers happen to use the same block numbers; where
their free lists are in different orders, the other layers get layer 0's blocks.
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
    """All layers of a session hold the same tokens: once the offset is off, one row says it for all of them."""

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
        rows = [
            self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=0, offset=0)
            for session in sessions
        ]
        torch.stack(rows, out=block_tables_cpu[0])
        block_tables_cpu[1:] = block_tables_cpu[0]
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        """One session's row of one layer, int32 [max_blocks]."""
        if table.row_cache is None:
            table.row_cache = [None] * self.kv.num_layers
        ids = table[layer_idx]
        kept = table.row_cache[layer_idx]
        if kept is None:
            kept = table.row_cache[layer_idx] = {
                "row": torch.zeros(self.max_blocks, dtype=torch.int32),
                "count": 0,
                "last": None,
            }
        if ids and (kept["count"] != len(ids) or kept["last"] != ids[-1]):
            first = max(0, kept["count"] - 1)
            for i in range(first, len(ids)):
                kept["row"][i] = ids[i] - offset
            kept["count"], kept["last"] = len(ids), ids[-1]
        return kept["row"]
