"""Attention in plain torch for query heads that share K and V: repeated for each of them, and read once a group.

A lesson about another family, no rung: all parts of the ladder read K and V once a group.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..config import EngineConfig
from ..kernels.reference import ByLayer, context_positions, context_rows
from ..kv.blocks import KVBlockManager
from ..models.shape import Model
from . import l063


class PlainForward(l063.DecodeForward):
    """Attention of a layer is its own `attention`, on every device.

    attention: takes the arguments of `reference.paged_attention_decode`, and returns [B, H, D].
    """

    attention: Callable[..., Tensor]

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.model = model
        self.paged_attention = type("OwnAttention", (ByLayer,), {"attention": staticmethod(self.attention)})(kv)


class RepeatedHeads(PlainForward):
    """K and V are repeated until each query head has its own."""

    def attention(
        self,
        q: Tensor,
        k_layer: Tensor,
        v_layer: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        max_context_len: int,
        k_new: Tensor,
        v_new: Tensor,
    ) -> Tensor:
        """One token per session attends: [B, H, D]."""
        _, H_kv, block_size, D = k_layer.shape
        G = q.shape[1] // H_kv  # query heads in a group
        positions, mask = context_positions(context_lens, max_context_len)  # [B, T], [B, 1, T]
        rows = context_rows(block_table, positions, H_kv, block_size)  # [B, H_kv, T]
        k = torch.cat([k_layer.view(-1, D)[rows], k_new[:, :, None]], dim=2).float()  # [B, H_kv, T + 1, D]
        v = torch.cat([v_layer.view(-1, D)[rows], v_new[:, :, None]], dim=2).float()
        k, v = k.repeat_interleave(G, dim=1), v.repeat_interleave(G, dim=1)  # [B, H, T + 1, D]
        scores = q[:, :, None].float() @ k.transpose(2, 3) * D**-0.5  # [B, H, 1, T + 1]
        scores[..., :-1] += mask[:, :, None]
        return (scores.softmax(dim=3) @ v).squeeze(2).to(q.dtype)


class GroupedHeads(PlainForward):
    """The query heads of a group are the rows of one product with their K and V."""

    def attention(
        self,
        q: Tensor,
        k_layer: Tensor,
        v_layer: Tensor,
        block_table: Tensor,
        context_lens: Tensor,
        max_context_len: int,
        k_new: Tensor,
        v_new: Tensor,
    ) -> Tensor:
        """One token per session attends: [B, H, D]."""
        _, H_kv, block_size, D = k_layer.shape
        positions, mask = context_positions(context_lens, max_context_len)  # [B, T], [B, 1, T]
        rows = context_rows(block_table, positions, H_kv, block_size)  # [B, H_kv, T]
        k = torch.cat([k_layer.view(-1, D)[rows], k_new[:, :, None]], dim=2).float()  # [B, H_kv, T + 1, D]
        v = torch.cat([v_layer.view(-1, D)[rows], v_new[:, :, None]], dim=2).float()
        groups = q.unflatten(1, (H_kv, -1)).float()  # [B, H_kv, G, D]
        scores = groups @ k.transpose(2, 3) * D**-0.5  # [B, H_kv, G, T + 1]
        scores[..., :-1] += mask[:, :, None]
        return (scores.softmax(dim=3) @ v).flatten(1, 2).to(q.dtype)
