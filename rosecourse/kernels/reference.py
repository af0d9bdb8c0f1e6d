"""Attention in plain torch: the specification that the other implementations are tested against."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..kv.guards import settings_aside
from .by_layer import ByLayer
from .heads import group_size


def paged_attention_decode(
    q: torch.Tensor,
    k_layer: torch.Tensor,
    v_layer: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    max_context_len: int,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
) -> torch.Tensor:
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
    with settings_aside(q.device):
        scores = q.unflatten(1, (H_kv, G)).float() @ k.transpose(2, 3) * D**-0.5  # [B, H_kv, G, T + 1]
        scores[..., :-1] += mask[:, :, None]
        return (scores.softmax(dim=3) @ v).flatten(1, 2).to(q.dtype)


def context_rows(block_tables: torch.Tensor, positions: torch.Tensor, H_kv: int, block_size: int) -> torch.Tensor:
    """Where each (session, K and V head, position) lies in a layer, seen as rows [num_blocks * H_kv * block_size, D].

    block_tables: int [..., B, max_blocks], of one layer or of all; positions: int64 [B, T].
    Returns int64 [..., B, H_kv, T].
    """
    logical = (positions // block_size).expand(*block_tables.shape[:-1], -1)
    # int64 before the multiplication: a large pool has more than 2^31 elements.
    row = block_tables.gather(-1, logical).long() * (H_kv * block_size) + positions % block_size  # of the first head
    return row[..., None, :] + torch.arange(H_kv, device=row.device)[:, None] * block_size


def context_positions(context_lens: torch.Tensor, T: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The positions 0 to T - 1 of each session [B, T], and what is added to their scores [B, 1, T].

    A position past a session's context becomes position 0, whose K and V are finite, with a score of -inf.
    """
    position = torch.arange(T, device=context_lens.device)
    past = position >= context_lens[:, None]
    mask = torch.zeros(past.shape, dtype=torch.float32, device=past.device).masked_fill_(past, float("-inf"))
    return position.expand_as(past).masked_fill(past, 0), mask[:, None]


def add_norm(
    x: torch.Tensor, delta: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x + delta, both [N, C], in their dtype, and the layer norm of it."""
    total = x + delta
    return total, F.layer_norm(total, weight.shape, weight, bias, eps)


class ReferenceAttention(ByLayer):
    """Paged attention of an engine, in plain torch: where neither Triton nor `SparseAttention` can be used."""

    attention = staticmethod(paged_attention_decode)


def to_host(tokens: torch.Tensor, host: torch.Tensor) -> None:
    """Copy tokens, int64 [B] on the device, to memory of the host, int64 [B]; nobody waits if it is pinned."""
    host.copy_(tokens, non_blocking=True)
