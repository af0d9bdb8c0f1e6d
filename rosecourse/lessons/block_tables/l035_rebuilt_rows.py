"""Part `block_tables`: where, for each layer and session, the blocks lie."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...config import EngineConfig
from ...decode.ranges import range_for
from ...kv.blocks import KVBlockManager
from ...kv.buffers import StagingBuffer
from ...models.shape import Model
from ...request.session import InferenceSession


class BlockTables:
    """Rows built from Python lists, for every layer, at every step; one asynchronous copy to the device for all."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks  # global block id -> block index in the layer
            rows: list[list[int]] = []
            for session in sessions:
                ids = session.block_ids_per_layer[layer_idx]
                rows.append([block_id - offset for block_id in ids] + [0] * (self.max_blocks - len(ids)))
            block_tables_cpu[layer_idx].copy_(torch.tensor(rows, dtype=torch.int32, device="cpu"))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()
