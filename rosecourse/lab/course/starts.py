"""What exercises begin as, where the part before the lesson has another contract than the one after it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...config import EngineConfig
from ...decode.inputs import DecodeInputs
from ...decode.parts import Append
from ...kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from ...kv.buffers import index_tensor
from ...kv.one_table import BlockTable, KVBlockManager
from ...models.shape import Model
from ...request.session import InferenceSession


class KVAppendByLayer:
    """Room is made once for all layers; copies are made and slots are found in each layer, as in lesson 061."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.full_batch_min_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        """keys, values: for each layer [B, H, D]."""
        tables = [session.table for session in sessions]
        copies = self.kv.place(tables)
        for layer_idx in range(self.kv.num_layers):
            for old, new in copies:
                self.kv.k_layers[layer_idx][new] = self.kv.k_layers[layer_idx][old]
                self.kv.v_layers[layer_idx][new] = self.kv.v_layers[layer_idx][old]
            self.write(layer_idx, tables, keys[layer_idx], values[layer_idx])
        for table in tables:
            table.num_tokens += 1

    def write(self, layer_idx: int, tables: list[BlockTable], key_new: Tensor, value_new: Tensor) -> None:
        """Write one token of each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        device, n = self.kv.device, len(tables)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        pos_list = [table.num_tokens % self.kv.block_size for table in tables]
        const_pos = all(pos == pos_list[0] for pos in pos_list)  # the same slot in every block: a number will do
        blk_t = index_tensor([table[-1] for table in tables], device)
        if self.triton and const_pos and n >= self.full_batch_min_batch:
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos_list[0])
            return
        if self.triton and n >= self.min_batch:
            idx_t, pos_t = index_tensor([list(range(n)), pos_list], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)
            return
        slots = pos_list[0] if const_pos else index_tensor(pos_list, device)
        k_layer[blk_t, :, slots] = key_new
        v_layer[blk_t, :, slots] = value_new


class KVAppend:
    """Slots are found on the host, from the lists of the sessions, as in lesson 062."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes one layer's K and V [B, H, D], for all sessions."""
        tables = [session.table for session in inputs.sessions]
        ends = index_tensor([table[-1] for table in tables], self.kv.device)
        free = index_tensor([table.num_tokens % self.kv.block_size for table in tables], self.kv.device)

        def append(layer_idx: int, k: Tensor, v: Tensor) -> None:
            self.kv.k_layers[layer_idx][ends, :, free] = k
            self.kv.v_layers[layer_idx][ends, :, free] = v

        return append
