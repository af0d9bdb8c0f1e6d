"""lesson: 036
verdict: wrong
cause: row-stale
shows: cpu
A changed row is written from the old length on, so a last block that a copy-on-write has replaced keeps its old number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Rows are kept on the table, with (length, last id) as the signature."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        out = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(s.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for s in sessions
                ],
                out=out[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [
                {"row": torch.zeros(self.max_blocks, dtype=torch.int32), "sig": (0, None)}
                for _ in range(self.kv.num_layers)
            ]
        kept = table.row_cache[layer_idx]
        ids = table[layer_idx]
        sig = (len(ids), ids[-1]) if ids else (0, None)
        if kept["sig"] != sig:
            first_new = kept["sig"][0]  # everything before it is in the row already
            for i in range(first_new, len(ids)):
                kept["row"][i] = ids[i] - offset
            kept["sig"] = sig
        return kept["row"]
