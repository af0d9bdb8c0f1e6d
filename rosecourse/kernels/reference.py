"""Attention in plain torch: the specification that the Triton kernels are tested against, and the CPU's own path."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
    B, H, D = q.shape
    block_size = k_layer.shape[2]
    position = torch.arange(max_context_len, device=q.device)
    live = position < context_lens[:, None]  # [B, T]
    # The row of [num_blocks * H * block_size, D] where each (session, head, position) lies. Rows past the context
    # repeat the session's first one: finite, and masked below.
    block = block_table[:, position // block_size].long()
    slot = block * (H * block_size) + position % block_size
    slot = torch.where(live, slot, slot[:, :1])
    rows = slot[:, None, :] + torch.arange(H, device=q.device)[:, None] * block_size  # [B, H, T]
    k = k_layer.reshape(-1, D).index_select(0, rows.flatten()).view(B, H, -1, D)
    v = v_layer.reshape(-1, D).index_select(0, rows.flatten()).view(B, H, -1, D)
    k = torch.cat([k, k_new[:, :, None]], dim=2)  # [B, H, T + 1, D]
    v = torch.cat([v, v_new[:, :, None]], dim=2)
    mask = F.pad(live, (0, 1), value=True)[:, None, None]  # [B, 1, 1, T + 1]
    return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask)[:, :, 0]
