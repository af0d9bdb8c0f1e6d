"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
The tables that are sent are as wide as the longest list of the step, [L, B, longest], and not [L, B, max_blocks]. The tokens
are the same, but the part's promise is not kept, and the shape changes from step to step.
"""
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass
class KeptRow:
    row: torch.Tensor
    signature: tuple[int, int] = field(default=(0, -1))

    def renew(self, ids: list[int], offset: int) -> None:
        new = (len(ids), ids[-1] if ids else -1)
        if new == self.signature:
            return
        start = max(self.signature[0] - 1, 0)
        self.row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
        self.signature = new


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        # Nobody reads the zeros at the end of the rows: only the columns in use are sent.
        longest = max(len(session.block_ids_per_layer[0]) for session in sessions)
        cpu = self.buffer.host(self.kv.num_layers, len(sessions), longest)
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            rows = [
                self.get_paged_block_table_row_cpu(
                    session.block_ids_per_layer, layer_idx=layer_idx, offset=offset
                )[:longest]
                for session in sessions
            ]
            torch.stack(rows, out=cpu[layer_idx])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [
                KeptRow(torch.zeros(self.max_blocks, dtype=torch.int32))
                for _ in range(self.kv.num_layers)
            ]
        kept = table.row_cache[layer_idx]
        kept.renew(table[layer_idx], offset)
        return kept.row
