"""Part `kv_append`: put the new token's K and V into the cache."""

from __future__ import annotations

from torch import Tensor

from ..config import EngineConfig
from ..kernels import kv_append_by_table, triton_runs_on
from ..kv.blocks import KVBlockManager
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

    def __call__(self, inputs: DecodeInputs) -> Append:
        """What writes one layer's K and V [B, H, D] at the positions `context_lens`."""
        tables, positions = inputs.block_tables[0], inputs.context_lens
        if self.triton and len(positions) >= self.min_batch:
            return lambda layer_idx, k, v: kv_append_by_table(
                self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx], k, v, tables, positions
            )
        blocks = tables.gather(1, (positions // self.kv.block_size)[:, None])[:, 0]  # [B], of every layer
        slots = positions % self.kv.block_size

        def append(layer_idx: int, k: Tensor, v: Tensor) -> None:
            self.kv.k_layers[layer_idx][blocks, :, slots] = k
            self.kv.v_layers[layer_idx][blocks, :, slots] = v

        return append
