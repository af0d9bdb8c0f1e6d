"""lesson: 036
verdict: right
cause: right
shows: cpu
A row is a tensor over a bytearray that the table carries; what is new is packed into the bytes by `struct`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession

WIDTH = struct.calcsize("=i")


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        target = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        offset = 0
        for layer_idx, layer in enumerate(target.flatten(1)):
            torch.cat(
                [
                    self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                    for session in sessions
                ],
                out=layer,
            )
            offset += self.kv.num_blocks
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        """One session's row of one layer, int32 [max_blocks], from the cache that the table carries."""
        if table.row_cache is None:
            table.row_cache = [self._empty_row() for _ in range(self.kv.num_layers)]
        raw, row, shown = table.row_cache[layer_idx]
        ids = table[layer_idx]
        if ids and shown != (state := (len(ids), ids[-1])):
            begin = max(shown[0] - 1, 0)
            new = ids[begin:]
            struct.pack_into(f"={len(new)}i", raw, begin * WIDTH, *(block_id - offset for block_id in new))
            table.row_cache[layer_idx] = raw, row, state
        return row

    def _empty_row(self) -> tuple[bytearray, torch.Tensor, tuple[int, int]]:
        raw = bytearray(self.max_blocks * WIDTH)
        return raw, torch.frombuffer(raw, dtype=torch.int32), (0, -1)
