"""Paged attention of an engine by a function that computes one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from ..kv.pool import KVPool


class ByLayer:
    """Calls `attention` with a layer's cache and a layer's table, and with what was planned for the step.

    attention: takes the arguments of `reference.paged_attention_decode`; a subclass gives it, as a `staticmethod`.
    """

    attention: ClassVar[Callable[..., torch.Tensor]]

    def __init__(self, kv: KVPool) -> None:
        self.kv = kv

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        """block_tables: int [L, B, max_blocks]; the rest as in `reference.paged_attention_decode`."""
        self.block_tables = block_tables.unbind()
        self.context = (context_lens, max_context_len)

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        """Attention of one layer: q and the result [B, H, D], k_new and v_new [B, H_kv, D]."""
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        return self.attention(q, k_layer, v_layer, self.block_tables[layer_idx], *self.context, k_new, v_new)
