"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: gpu
A pinned buffer of the part's own takes the place of the StagingBuffer, and nobody waits for the last copy out of it. On a GPU that is behind, a next
call writes its rows into the buffer before the device has read those of this one; in this lesson's engine the host happens to wait for the tokens in between. On
a CPU nothing is copied and all is right.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    """Kept rows, one pinned buffer for all layers, one copy that does not wait."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.pinned = torch.zeros(
            kv.num_layers * config.max_batch_size * self.max_blocks,
            dtype=torch.int32,
            pin_memory=kv.device.type == "cuda",
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        shape = (self.kv.num_layers, len(sessions), self.max_blocks)
        used = self.pinned[: shape[0] * shape[1] * shape[2]]
        block_tables_cpu = used.view(shape)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            torch.stack(
                [
                    self.get_paged_block_table_row_cpu(
                        session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                    )
                    for session in sessions
                ],
                out=block_tables_cpu[layer_idx],
            )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return used.to(self.kv.device, non_blocking=True).view(shape)

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, (0, -1)) for row in rows]
        row, (count, last) = table.row_cache[layer_idx]
        ids = table[layer_idx]
        newest = ids[-1] if ids else -1
        if (len(ids), newest) != (count, last):
            start = max(count - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            table.row_cache[layer_idx] = (row, (len(ids), newest))
        return row
