"""lesson: 036
verdict: wrong
cause: wrong-block
shows: cpu
Which ids are new is found with sets, and several new ones are entered in ascending order and not in the order of the list. Wherever the
free list does not hand out blocks in ascending order, a prompt of several blocks is shown with its blocks in the wrong order.
"""
from collections.abc import Sequence

import torch

from rosecourse.config import EngineConfig
from rosecourse.decode.step import range_for
from rosecourse.lessons.l035_blocks import BlockTable, KVBlockManager
from rosecourse.kv.buffers import StagingBuffer
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class RowWithIds:
    """A row, and the set of the ids that it shows."""

    def __init__(self, width: int) -> None:
        self.row = torch.zeros(width, dtype=torch.int32)
        self.known: set[int] = set()

    def update(self, ids: list[int], offset: int) -> torch.Tensor:
        new = set(ids).difference(self.known)
        if new:
            gone = self.known.difference(ids)  # the original of a copied block
            place = len(self.known) - len(gone)
            for block_id in sorted(new):
                self.row[place] = block_id - offset
                place += 1
            self.known -= gone
            self.known |= new
        return self.row


class MyBlockTables:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(
            kv.num_layers * config.max_batch_size * self.max_blocks, torch.int32, kv.device
        )

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        block_tables_cpu = self.buffer.host(self.kv.num_layers, len(sessions), self.max_blocks)
        for layer_idx, layer in enumerate(block_tables_cpu):
            offset = layer_idx * self.kv.num_blocks
            for session, target in zip(sessions, layer, strict=True):
                table = session.block_ids_per_layer
                target.copy_(
                    self.get_paged_block_table_row_cpu(table, layer_idx=layer_idx, offset=offset)
                )
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device()

    def get_paged_block_table_row_cpu(
        self, table: BlockTable, *, layer_idx: int, offset: int
    ) -> torch.Tensor:
        if table.row_cache is None:
            table.row_cache = [RowWithIds(self.max_blocks) for _ in table]
        return table.row_cache[layer_idx].update(table[layer_idx], offset)
