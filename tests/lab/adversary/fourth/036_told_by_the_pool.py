"""lesson: 036
verdict: wrong
cause: tampering
shows: cpu
Replaces KVBlockManager.allocate_block, for every engine of the process, by a wrapper that counts, so that the part is
told when lists may have changed. The tables are right.
"""

import functools
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


def count_allocations() -> None:
    """From now on each manager knows how many blocks it has given out."""
    allocate = KVBlockManager.allocate_block
    if hasattr(allocate, "counts"):
        return

    @functools.wraps(allocate)
    def counted(self: KVBlockManager, layer_idx: int, start: int = 0) -> int:
        self.allocations = getattr(self, "allocations", 0) + 1
        return allocate(self, layer_idx, start)

    counted.counts = True
    KVBlockManager.allocate_block = counted


class MyBlockTables:
    """No list changes without an allocation: while the pool gives out nothing, no list is looked at."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        count_allocations()
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)
                for session in sessions
            ]
            torch.stack(rows, out=block_tables_cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32).unbind()
            table.row_cache = [(row, (0, -1), -1) for row in rows]
        row, (n, last), seen = table.row_cache[layer_idx]
        now = getattr(self.kv, "allocations", 0)
        if seen == now:
            return row
        ids = table[layer_idx]
        if ids and (n, last) != (len(ids), ids[-1]):
            start = max(n - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            n, last = len(ids), ids[-1]
        table.row_cache[layer_idx] = (row, (n, last), now)
        return row
