"""Part `kv_append`: put the new token's K and V into the cache."""

from __future__ import annotations

from torch import Tensor

from ..config import EngineConfig
from ..kernels import kv_append_by_table, triton_runs_on
from ..kernels.reference import context_rows
from ..kv.one_table import KVBlockManager
from ..models.shape import Model
from .inputs import DecodeInputs
from .parts import Append


class KVAppend:
    """The slot of a session's next token is read off its block table, by its position: any mix of them, one way.

    vLLM's `slot_mapping` and SGLang's `out_cache_loc` name such slots too; here nobody has to write them down.
    """

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        # An interpreted kernel is slow: without a GPU it runs from as many sessions on as the engine is told.
        self.min_batch = 1 if kv.device.type == "cuda" else config.triton_kv_append_min_batch
        head_dim = kv.keys.shape[-1]
        self.k_rows = [k_layer.view(-1, head_dim) for k_layer in kv.k_layers]  # [num_blocks * H * block_size, D]
        self.v_rows = [v_layer.view(-1, head_dim) for v_layer in kv.v_layers]

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes one layer's K and V [B, H, D] at the positions `context_lens`."""
        tables, positions = inputs.block_tables[0], inputs.context_lens
        if self.triton and len(positions) >= self.min_batch:
            return lambda layer_idx, k, v: kv_append_by_table(
                self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], k, v, tables, positions
            )
        _, H, block_size, _ = self.kv.k_layers[0].shape
        rows = context_rows(tables, positions[:, None], H, block_size).flatten()  # [B * H], of every layer

        def append(layer_idx: int, k: Tensor, v: Tensor) -> None:
            self.k_rows[layer_idx][rows] = k.flatten(0, 1)
            self.v_rows[layer_idx][rows] = v.flatten(0, 1)

        return append
