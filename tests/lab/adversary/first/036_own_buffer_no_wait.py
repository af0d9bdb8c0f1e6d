"""lesson: 036
verdict: wrong
cause: buffer-reused
shows: gpu
A pinned buffer of its own is written again at each step without waiting for the copy of the step before.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.width = config.max_blocks
        size = kv.num_layers * config.max_batch_size * self.width
        self.pinned = torch.zeros(size, dtype=torch.int32, pin_memory=kv.device.type == "cuda")
        self.range = range_for(kv.device, config.nvtx)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        shape = (self.kv.num_layers, len(sessions), self.width)
        batch = self.pinned[: shape[0] * shape[1] * shape[2]].view(shape)
        for lay, plane in enumerate(batch):
            torch.stack([self.row(s.block_ids_per_layer, lay) for s in sessions], out=plane)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return batch.to(self.kv.device, non_blocking=True)

    def row(self, table: BlockTable, lay: int) -> torch.Tensor:
        if table.row_cache is None:
            blank = torch.zeros(len(table), self.width, dtype=torch.int32)
            table.row_cache = [[r, r.numpy(), 0, None] for r in blank]
        entry = table.row_cache[lay]
        tensor, array_, n, last = entry
        ids = table[lay]
        if ids and (n != len(ids) or last != ids[-1]):
            for j in range(max(n - 1, 0), len(ids)):
                array_[j] = ids[j] - lay * self.kv.num_blocks
            entry[2:] = len(ids), ids[-1]
        return tensor
