"""Attention in plain torch: the specification that the Triton kernel is tested against, and the CPU's own path."""

from __future__ import annotations

import torch

from ..kv.blocks import KVBlockManager


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

    q, k_new, v_new: [B, H, D], the new token's; k_layer, v_layer: [num_blocks, H, block_size, D].
    block_table: int [B, max_blocks], the physical block of each logical one; what lies past the context is not read.
    context_lens: int [B], tokens in the cache, at least 1, without the new one; max_context_len: the largest of them.
    Returns [B, H, D]. Only slots below the context length are read: whatever lies in the others does no harm.
    """
    H, block_size = k_layer.shape[1:3]
    rows = context_rows(block_table, context_lens, max_context_len, H, block_size)
    mask = context_mask(context_lens, max_context_len, H, q.dtype)
    return attend_to_rows(q, k_layer, v_layer, rows, mask, k_new, v_new)


def context_rows(
    block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int, H: int, block_size: int
) -> torch.Tensor:
    """Where each (session, head, position) lies in a layer, seen as rows [num_blocks * H * block_size, D].

    block_tables: int [..., B, max_blocks], of one layer or of all. Returns int64 [..., B, H, T]. Positions past a
    session's context repeat its first one: finite, and masked.
    """
    position = torch.arange(max_context_len, device=block_tables.device)
    block = block_tables[..., position // block_size].long()
    row = block * (H * block_size) + position % block_size  # [..., B, T], of the first head
    row = torch.where(position < context_lens[:, None], row, row[..., :1])
    return row[..., None, :] + torch.arange(H, device=row.device)[:, None] * block_size


def context_mask(context_lens: torch.Tensor, max_context_len: int, H: int, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores [B * H, 1, T]: 0 within the context, -inf past it."""
    position = torch.arange(max_context_len, device=context_lens.device)
    mask = torch.zeros(len(context_lens), max_context_len, dtype=dtype, device=context_lens.device)
    mask = mask.masked_fill(position >= context_lens[:, None], float("-inf"))
    return mask.repeat_interleave(H, dim=0)[:, None]


def attend_to_rows(
    q: torch.Tensor,
    k_layer: torch.Tensor,
    v_layer: torch.Tensor,
    rows: torch.Tensor,
    mask: torch.Tensor,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
) -> torch.Tensor:
    """Softmax attention to the rows of `context_rows` [B, H, T] and to the new token, which stays where it is."""
    B, H, D = q.shape
    rows = rows.flatten()
    k = k_layer.view(-1, D).index_select(0, rows).view(B * H, -1, D)
    v = v_layer.view(-1, D).index_select(0, rows).view(B * H, -1, D)
    q = q * D**-0.5
    scores = torch.baddbmm(mask, q.view(B * H, 1, D), k.transpose(1, 2))  # [B * H, 1, T]
    score_new = (q * k_new).sum(dim=-1).view(B * H, 1, 1)
    weights = torch.cat([scores, score_new], dim=2).softmax(dim=2)
    out_new = weights[:, :, -1:] * v_new.reshape(B * H, 1, D)
    return torch.baddbmm(out_new, weights[:, :, :-1], v).view(B, H, D)


class ReferenceAttention:
    """Paged attention of an engine, in plain torch. `plan` does once per step what all layers share."""

    def __init__(self, kv: KVBlockManager) -> None:
        self.kv = kv

    def plan(self, block_tables: torch.Tensor, context_lens: torch.Tensor, max_context_len: int) -> None:
        """block_tables: int [L, B, max_blocks]; the rest as in `paged_attention_decode`."""
        H, block_size, _ = self.kv.k_layers[0].shape[1:]
        self.rows = context_rows(block_tables, context_lens, max_context_len, H, block_size)
        self.mask = context_mask(context_lens, max_context_len, H, self.kv.k_layers[0].dtype)

    def run(self, layer_idx: int, q: torch.Tensor, k_new: torch.Tensor, v_new: torch.Tensor) -> torch.Tensor:
        """Attention of one layer: q, k_new, v_new and the result [B, H, D]."""
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        return attend_to_rows(q, k_layer, v_layer, self.rows[layer_idx], self.mask, k_new, v_new)
