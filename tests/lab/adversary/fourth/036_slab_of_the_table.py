"""lesson: 036
verdict: right
cause: right
shows: cpu
A table carries one slab [L, max_blocks] with two plain lists beside it; a session's column of the result is put in
place from its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass(slots=True)
class Slab:
    rows: tuple[torch.Tensor, ...]  # a view of the slab for each layer
    entries: np.ndarray  # the same memory
    lengths: list[int]
    ends: list[int]

    @classmethod
    def blank(cls, layers: int, width: int) -> "Slab":
        memory = torch.zeros(layers, width, dtype=torch.int32)
        return cls(memory.unbind(), memory.numpy(), [0] * layers, [-1] * layers)


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        L, per_layer = self.kv.num_layers, self.kv.num_blocks
        by_session = self.buffer.host(L, len(sessions), self.max_blocks).unbind(dim=1)
        for session, column in zip(sessions, by_session, strict=True):
            table = session.block_ids_per_layer
            for layer, place in enumerate(column.unbind()):
                place.copy_(self.get_paged_block_table_row_cpu(table, layer_idx=layer, offset=layer * per_layer))
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if not table.row_cache:
            table.row_cache = [Slab.blank(self.kv.num_layers, self.max_blocks)]
        (slab,) = table.row_cache
        ids = table[layer_idx]
        n = slab.lengths[layer_idx]
        if ids and (n != len(ids) or slab.ends[layer_idx] != ids[-1]):
            entries = slab.entries[layer_idx]
            for k in range(n - 1 if n else 0, len(ids)):
                if entries[k] != ids[k] - offset:
                    entries[k] = ids[k] - offset
            slab.lengths[layer_idx], slab.ends[layer_idx] = len(ids), ids[-1]
        return slab.rows[layer_idx]
