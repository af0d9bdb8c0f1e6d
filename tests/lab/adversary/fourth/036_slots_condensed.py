"""lesson: 036
verdict: wrong
cause: wrong-session
shows: cpu
Each session has a place in a kept slab. When one leaves, the one in the last place moves into the gap, so the slab is
no longer in the order of the batch, but its rows are handed out in the slab's order.
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
    """A persistent batch, as in vLLM: sessions keep their place, gaps are condensed."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device)
        self.slab = torch.zeros(kv.num_layers, config.max_batch_size, self.max_blocks, dtype=torch.int32)
        self.places: list[BlockTable] = []  # whose rows stand where

    def condense(self, here: list[BlockTable]) -> None:
        alive = {id(table) for table in here}
        place = 0
        while place < len(self.places):
            if id(self.places[place]) in alive:
                place += 1
                continue
            newest = self.places.pop()
            if place < len(self.places):
                self.places[place] = newest
                self.slab[:, place] = self.slab[:, len(self.places)]

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        tables = [session.block_ids_per_layer for session in sessions]
        self.condense(tables)
        known = {id(table) for table in self.places}
        self.places += [table for table in tables if id(table) not in known]
        for layer_idx in range(self.kv.num_layers):
            offset = layer_idx * self.kv.num_blocks
            for place, table in enumerate(self.places):
                row = self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
                self.slab[layer_idx, place].copy_(row)
        self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks).copy_(self.slab[:, : len(sessions)])
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(self, table: BlockTable, *, layer_idx: int, offset: int) -> torch.Tensor:
        if table.row_cache is None:
            rows = torch.zeros(self.kv.num_layers, self.max_blocks, dtype=torch.int32)
            table.row_cache = [(row, (-1, -1)) for row in rows.unbind()]
        row, signature = table.row_cache[layer_idx]
        ids = table[layer_idx]
        new_signature = (len(ids), ids[-1] if ids else -1)
        if new_signature != signature:
            start = max(signature[0] - 1, 0)
            row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]
            table.row_cache[layer_idx] = (row, new_signature)
        return row
