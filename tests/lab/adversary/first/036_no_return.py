"""lesson: 036
verdict: wrong
cause: interface
shows: cpu
`to_device()` is called, but its result is not returned: the step gets None.
"""

from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        host = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer, plane in enumerate(host.unbind()):
            torch.stack([self.row(s.block_ids_per_layer, layer) for s in sessions], out=plane)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            self.buffer.to_device()

    def row(self, table: BlockTable, layer: int) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = list(torch.zeros(len(table), self.max_blocks + 2, dtype=torch.int32))
        kept, ids = table.row_cache[layer], table[layer]  # [length, last id + 1, row ...]
        a = kept.numpy()
        if ids and (a[0] != len(ids) or a[1] != ids[-1] + 1):
            start = max(int(a[0]) - 1, 0)
            a[2 + start : 2 + len(ids)] = [i - layer * self.kv.num_blocks for i in ids[start:]]
            a[0], a[1] = len(ids), ids[-1] + 1
        return kept[2:]
