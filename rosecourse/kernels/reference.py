"""Attention in plain torch: the specification that the other implementations are tested against.

With it stands what they share: which heads of q, K and V fit together, and how a step runs layer by layer. Kernels
compute addresses from head counts, so these are compared before a launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import require
from ..kv.pool import KVPool
from ..models.shape import query_heads_per_kv_head

# Of k_layer and v_layer [num_blocks, H_kv, block_size, D], the caches of a layer; of q [H, D], and of k_new and v_new
# [H_kv, D], those of one new token.
Size = tuple[int, ...]


def require_same_heads(k_layer: Size, v_layer: Size, **new: Size) -> None:
    """Raise `ConfigError` unless the caches of K and V have one size and the new K and V have its heads.

    new: the sizes of K and V of a new token, under the names that the message calls them.
    """
    _, heads, _, head_dim = k_layer
    require(v_layer == k_layer, f"the cache of K is {list(k_layer)}, that of V {list(v_layer)}: give two of one size")
    for name, size in new.items():
        require(
            size == (heads, head_dim),
            f"{name} has {size[0]} heads of {size[1]} numbers, the cache {heads} heads of {head_dim}: give the same",
        )


@cache
def group_size(q: Size, k_layer: Size, v_layer: Size, k_new: Size, v_new: Size) -> int:
    """Query heads that share a K and V head, in one call of paged attention.

    Raises `ConfigError` for head counts or head sizes that do not fit each other.
    """
    require_same_heads(k_layer, v_layer, k_new=k_new, v_new=v_new)
    num_heads, head_dim = q
    require(
        head_dim == k_layer[3], f"q has heads of {head_dim} numbers, the cache heads of {k_layer[3]}: give the same"
    )
    return query_heads_per_kv_head(num_heads, k_layer[1])


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
    """One new token per session attends to the session's paged K and V and to its own.

    q: [B, H, D], the new token's; k_new, v_new: [B, H_kv, D], the new token's;
    k_layer, v_layer: [num_blocks, H_kv, block_size, D]. H is a multiple of H_kv: with groups of G = H / H_kv query
    heads, query head h reads K and V head h // G.
    block_table: int [B, max_blocks], the physical block of each logical one; entries past the context are not read.
    context_lens: int [B], tokens in the cache, at least 1, without the new one; max_context_len: the largest of them.
    Returns [B, H, D]. Only slots below the context length are read, so the others may hold anything. All arithmetic is
    in float32, whatever the cache holds: a score may be larger than float16 can say. Raises `ConfigError` for head
    counts that do not fit each other.
    """
    G = group_size(q.shape[1:], k_layer.shape, v_layer.shape, k_new.shape[1:], v_new.shape[1:])
    _, H_kv, block_size, D = k_layer.shape
    positions, mask = context_positions(context_lens, max_context_len)
    rows = context_rows(block_table, positions, H_kv, block_size)  # [B, H_kv, T]
    k = torch.cat([k_layer.view(-1, D)[rows], k_new[:, :, None]], dim=2).float()  # [B, H_kv, T + 1, D]
    v = torch.cat([v_layer.view(-1, D)[rows], v_new[:, :, None]], dim=2).float()
    scores = q.unflatten(1, (H_kv, G)).float() @ k.transpose(2, 3) * D**-0.5  # [B, H_kv, G, T + 1]
    scores[..., :-1] += mask[:, :, None]
    return (scores.softmax(dim=3) @ v).flatten(1, 2).to(q.dtype)


def context_rows(block_tables: Tensor, positions: Tensor, H_kv: int, block_size: int) -> Tensor:
    """Where each (session, K and V head, position) lies in a layer, seen as rows [num_blocks * H_kv * block_size, D].

    block_tables: int [..., B, max_blocks], of one layer or of all; positions: int64 [B, T].
    Returns int64 [..., B, H_kv, T].
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
    if bias is None:
        return total, F.rms_norm(total, weight.shape, weight, eps)
    return total, F.layer_norm(total, weight.shape, weight, bias, eps)


class ByLayer:
    """A `PagedAttention` that calls `attention` with a layer's cache and table, and what was planned for the step.

    attention: takes the arguments of `reference.paged_attention_decode`; a subclass gives it, as a `staticmethod`.
    """

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
