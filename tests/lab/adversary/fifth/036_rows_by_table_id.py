"""lesson: 036
verdict: wrong
cause: state-kept
shows: cpu
The rows are kept in a dictionary of the part, by id(table), and never dropped. A table that is freed gives its id to a
later one, which then finds the rows and the signature of the dead table: old ids stay in the row wherever the end alone is written, or where the signature
is by chance the same.
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
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )
        # (which table, which layer) -> its row, and what the row shows: (how many, the last)
        self.rows: dict[tuple[int, int], torch.Tensor] = {}
        self.shown: dict[tuple[int, int], tuple[int, int]] = {}

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device."""
        tables = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx in range(self.kv.num_layers):
            rows = []
            for session in sessions:
                rows.append(
                    self.get_paged_block_table_row_cpu(
                        session.block_ids_per_layer,
                        layer_idx=layer_idx,
                        offset=layer_idx * self.kv.num_blocks,
                    )
                )
            torch.stack(rows, out=tables[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        key = (id(table), layer_idx)
        ids = table[layer_idx]
        if key not in self.rows:
            self.rows[key] = torch.zeros(self.max_blocks, dtype=torch.int32)
            self.shown[key] = (0, -1)
        row = self.rows[key]
        many, _ = self.shown[key]
        now = (len(ids), ids[-1] if ids else -1)
        if self.shown[key] != now:
            begin = max(many - 1, 0)  # the last one may have been replaced
            row[begin:] = 0
            for place in range(begin, len(ids)):
                row[place] = ids[place] - offset
            self.shown[key] = now
        return row
