"""lesson: 036
verdict: wrong
cause: interface
shows: cpu
`get_paged_block_table_row_cpu` takes a session and the number of the layer instead of a table, `layer_idx=` and
`offset=`. The part itself calls it that way, so that its own tables are right; nobody else can ask for a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


@dataclass
class Kept:
    row: torch.Tensor
    signature: tuple[int, int] = field(default=(0, -1))


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer in range(self.kv.num_layers):
            rows = [self.get_paged_block_table_row_cpu(session, layer) for session in sessions]
            torch.stack(rows, out=block_tables_cpu[layer])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, session: InferenceSession, layer: int) -> torch.Tensor:
        table = session.block_ids_per_layer
        if table.row_cache is None:
            table.row_cache = [Kept(torch.zeros(self.max_blocks, dtype=torch.int32)) for _ in table]
        kept, ids = table.row_cache[layer], table[layer]
        if ids and kept.signature != (len(ids), ids[-1]):
            start = max(kept.signature[0] - 1, 0)
            kept.row.numpy()[start : len(ids)] = [self.kv.block_index(block_id) for block_id in ids[start:]]
            kept.signature = (len(ids), ids[-1])
        return kept.row
