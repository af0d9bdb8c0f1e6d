"""lesson: 036
verdict: wrong
cause: goal-missed
shows: cpu
No tensor is made by torch.tensor, but a ctypes array is filled from the list for each row at each step, which
is the same work.
"""

import ctypes
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Rows as C arrays, copied into the pinned buffer with memmove: no tensor is built at all."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.Row = ctypes.c_int32 * self.max_blocks

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        address = host.data_ptr()
        for lay in range(self.kv.num_layers):
            first = lay * self.kv.num_blocks
            for session in sessions:
                row = self.Row(*(i - first for i in session.block_ids_per_layer[lay]))
                ctypes.memmove(address, row, ctypes.sizeof(row))
                address += ctypes.sizeof(row)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()
