"""One table for all layers: a session has one list of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..config import EngineConfig
from ..decode.step import range_for
from ..kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from ..kv.blocks import BlockTable, KVBlockManager
from ..kv.buffers import StagingBuffer, index_tensor
from ..models.shape import Model
from ..request.session import InferenceSession


class BlockTables:
    """One row a session, kept from step to step, rebuilt when it changes; all layers read the same ones."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.max_blocks = config.max_blocks
        self.range = range_for(kv.device, config.nvtx)
        self.buffer = StagingBuffer(config.max_batch_size * self.max_blocks, torch.int32, kv.device)

    def __call__(self, sessions: Sequence[InferenceSession]) -> torch.Tensor:
        """int32 [L, B, max_blocks] on the device: physical block of each logical one, 0 past the last."""
        block_tables_cpu = self.buffer.host(len(sessions), self.max_blocks)
        rows = [self.get_paged_block_table_row_cpu(session.table) for session in sessions]
        torch.stack(rows, out=block_tables_cpu)
        with self.range("roseinfer.decode_step_sessions.h2d_block_tables"):
            return self.buffer.to_device().expand(self.kv.num_layers, -1, -1)

    def get_paged_block_table_row_cpu(self, table: BlockTable) -> torch.Tensor:
        """One session's row, int32 [max_blocks], from the cache that the table carries.

        A table only grows, except that its last block may be replaced by a copy: its length and last block show a
        change, and only its end is written anew. Other blocks come with another table, whose cache is empty.
        """
        if table.row_cache is None:
            table.row_cache = (torch.zeros(self.max_blocks, dtype=torch.int32, device="cpu"), (-1, -1))
        row, signature = table.row_cache
        new_signature = (len(table), table[-1] if table else -1)
        if new_signature != signature:
            start = max(signature[0] - 1, 0)  # what lies before has not changed
            row.numpy()[start : len(table)] = table[start:]
            table.row_cache = (row, new_signature)
        return row


class Slots(NamedTuple):
    """Where the next token of each session goes, in every layer."""

    blocks: Tensor  # int64 [B]
    pos: int | Tensor  # the slot in them: one number if it is the same in all, else int64 [B]
    batch: Tensor | None  # int64 [B], 0 to B - 1, where a kernel wants to know whose token goes there


class KVAppend:
    """Slots are found once a step, for all layers; large batches go by a Triton kernel, equal slots by a simple one."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        tables = [session.table for session in sessions]
        for source, copy in self.kv.place(tables):
            for cache in (self.kv.keys, self.kv.values):
                cache[:, copy] = cache[:, source]
        slots = self.slots(tables)
        for layer_idx in range(self.kv.num_layers):
            self.append_token_batch(layer_idx, slots, keys[layer_idx], values[layer_idx])
        for table in tables:
            table.num_tokens += 1

    def slots(self, tables: list[BlockTable]) -> Slots:
        """The slot behind the last token of each session."""
        device, n = self.kv.device, len(tables)
        positions = [table.num_tokens % self.kv.block_size for table in tables]
        blocks = [table[-1] for table in tables]
        if all(pos == positions[0] for pos in positions):  # the same slot in every block: a number will do
            return Slots(index_tensor(blocks, device), positions[0], None)
        return Slots(*index_tensor([blocks, positions, list(range(n))], device))

    def append_token_batch(self, layer_idx: int, slots: Slots, key_new: Tensor, value_new: Tensor) -> None:
        """Write one token of each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        n, (blocks, pos, batch) = len(key_new), slots
        if self.triton and batch is None and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, pos)
        elif self.triton and batch is not None and n >= self.min_batch:
            kv_append_triton(k_layer, v_layer, key_new, value_new, batch, blocks, pos)
        else:
            k_layer[blocks, :, pos] = key_new
            v_layer[blocks, :, pos] = value_new
