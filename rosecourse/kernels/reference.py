"""Attention in plain torch: the specification that the other implementations are tested against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..kv.pool import KVPool
from ..models.ops import Norm


def paged_attention_decode(
    q: Tensor,
    k_layer: Tensor,
    v_layer: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    max_context_len: int,
    k_new: Tensor,
    v_new: Tensor,
) -> Tensor:
    """One new token per session attends to the session's paged K and V and to its own: [B, H, D].

    q: [B, H, D]; k_new, v_new: [B, H_kv, D], of the new token; k_layer, v_layer: [num_blocks, H_kv, block_size, D].
    block_table: int [B, max_blocks]; entries past the context are not read. context_lens: int [B], tokens in the cache,
    at least 1, without the new one; max_context_len: the largest of them. Slots past the context may hold anything. All
    arithmetic is in float32: a score may be larger than float16 can say.
    """
    _, H_kv, block_size, D = k_layer.shape
    positions, mask = context_positions(context_lens, max_context_len)
    rows = context_rows(block_table, positions, H_kv, block_size)  # [B, H_kv, T]
    k = torch.cat([k_layer.view(-1, D)[rows], k_new[:, :, None]], dim=2).float()  # [B, H_kv, T + 1, D]
    v = torch.cat([v_layer.view(-1, D)[rows], v_new[:, :, None]], dim=2).float()
    scores = q.unflatten(1, (H_kv, -1)).float() @ k.transpose(2, 3) * D**-0.5  # [B, H_kv, G, T + 1]
    scores[..., :-1] += mask[:, :, None]
    return (scores.softmax(dim=3) @ v).flatten(1, 2).to(q.dtype)


def prompt_attention(
    q: Tensor, k_layer: Tensor, v_layer: Tensor, block_table: Tensor, last_rows: Tensor, positions: Tensor
) -> Tensor:
    """Rows of prompts attend to all of their session up to themselves, whose K and V are in the cache: [N, H, D].

    q: [N, H, D]. block_table: int [B, max_blocks]. last_rows: int64 [B], the rows of a session end with it, after those
    of the session before; positions: int64 [N]. The rest as in `paged_attention_decode`.
    """
    _, H_kv, block_size, D = k_layer.shape
    session = torch.searchsorted(last_rows, torch.arange(len(q), device=q.device))
    places, mask = context_positions(positions + 1, block_table.shape[1] * block_size)
    rows = context_rows(block_table[session], places, H_kv, block_size)  # [N, H_kv, T]
    k, v = (cache.view(-1, D)[rows].float() for cache in (k_layer, v_layer))
    scores = q.unflatten(1, (H_kv, -1)).float() @ k.transpose(2, 3) * D**-0.5 + mask[:, :, None]
    return (scores.softmax(dim=3) @ v).flatten(1, 2).to(q.dtype)


def context_rows(block_tables: Tensor, positions: Tensor, H_kv: int, block_size: int) -> Tensor:
    """Where each (session, K and V head, position) lies in a layer, seen as rows [num_blocks * H_kv * block_size, D].

    block_tables: int [..., B, max_blocks]; positions: int64 [B, T]. Returns int64 [..., B, H_kv, T].
    """
    logical = (positions // block_size).expand(*block_tables.shape[:-1], -1)
    # int64 before the multiplication: a large pool has more than 2^31 elements.
    row = block_tables.gather(-1, logical).long() * (H_kv * block_size) + positions % block_size  # of the first head
    return row[..., None, :] + torch.arange(H_kv, device=row.device)[:, None] * block_size


def context_positions(context_lens: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """The positions 0 to T - 1 of each session [B, T], and what is added to their scores [B, 1, T].

    A position past a session's context becomes position 0, whose K and V are finite, with a score of -inf.
    """
    position = torch.arange(T, device=context_lens.device)
    past = position >= context_lens[:, None]
    mask = torch.zeros(past.shape, dtype=torch.float32, device=past.device).masked_fill_(past, float("-inf"))
    return position.expand_as(past).masked_fill(past, 0), mask[:, None]


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta, both [N, C], in their dtype, and the layer norm of it; the RMS norm where there is no bias."""
    total = x + delta
    return total, Norm(weight, bias, eps)(total)


class ByLayer:
    """A `PagedAttention` that calls `attention`, with the arguments of `paged_attention_decode`, layer by layer."""

    attention: ClassVar[Callable[..., Tensor]]

    def __init__(self, kv: KVPool) -> None:
        self.kv = kv

    def plan(self, block_tables: Tensor, context_lens: Tensor, max_context_len: int) -> None:
        self.block_tables = block_tables.unbind()
        self.context = (context_lens, max_context_len)

    def run(self, layer_idx: int, q: Tensor, k_new: Tensor, v_new: Tensor, *more: Any) -> Tensor:
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        return self.attention(q, k_layer, v_layer, self.block_tables[layer_idx], *self.context, k_new, v_new, *more)


class ReferenceAttention(ByLayer):
    """Paged attention of an engine, in plain torch: where neither Triton nor `SparseAttention` can be used."""

    attention = staticmethod(paged_attention_decode)


class PromptAttention:
    """Attention of prompts in the cache, in plain torch, planned once for all layers."""

    attention: ClassVar[Callable[..., Tensor]] = staticmethod(prompt_attention)

    def __init__(self, kv: KVPool, heads_per_kv_head: int) -> None:
        self.kv, self.heads_per_kv_head = kv, heads_per_kv_head

    def where(self, last_rows: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
        """What `attention` is told of the rows, as it takes them itself."""
        return last_rows, positions

    def plan(self, tokens: Any) -> Callable[..., Tensor]:
        """tokens: a `PromptTokens`. What comes back is called with a layer, q [N, H, D], and K and V, not read."""
        where = self.where(tokens.last_rows, tokens.positions)

        def attend(layer_idx: int, q: Tensor, *_: Tensor) -> Tensor:
            k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
            return self.attention(q, k_layer, v_layer, tokens.tables[layer_idx], *where)

        return attend
