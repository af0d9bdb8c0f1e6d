"""lesson: 036
verdict: wrong
cause: row-shape
shows: cpu
Computes the width itself as `max_seq_len // block_size`, which is one too few where the length is no multiple
of the block size.
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
        self.max_blocks = (config.max_seq_len or model.shape.context) // config.block_size
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
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
        cached = table.row_cache
        if cached is None:
            cached = table.row_cache = [
                {"row": torch.zeros(self.max_blocks, dtype=torch.int32), "len": 0, "last": None} for _ in table
            ]
        entry, ids = cached[layer_idx], table[layer_idx]
        if ids and (entry["len"] != len(ids) or entry["last"] != ids[-1]):
            at = max(entry["len"] - 1, 0)
            entry["row"].numpy()[at : len(ids)] = [i - offset for i in ids[at:]]
            entry.update(len=len(ids), last=ids[-1])
        return entry["row"]
