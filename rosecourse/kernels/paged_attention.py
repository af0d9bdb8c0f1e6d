"""The Triton kernel of paged decode attention: one program per session and query head.

An online softmax over the context (Milakov and Gimelshein, 2018), which is read through a block table (vLLM).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .compile import compiled
from .reference import ByLayer

TILE = 64  # context positions that a program reads at a time; a tile may span blocks, and a block tiles
WARPS = 2  # of a program; more of them wait for each other at every tile (on an H200, 4 take 1.3 to 1.4 times as long)


# Where tables and lengths begin depends on the batch, and strides on the caller: one binary serves all.
@triton.jit(
    do_not_specialize=["q_stride", "k_stride", "v_stride", "table_stride"],
    do_not_specialize_on_alignment=["q_ptr", "table_ptr", "lens_ptr", "k_new_ptr", "v_new_ptr", "out_ptr"],
)
def _paged_attn_decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lens_ptr, k_new_ptr, v_new_ptr, out_ptr,
    q_stride, k_stride, v_stride, table_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    h_kv = h // GROUP  # of K and V: GROUP query heads read the same
    d = tl.arange(0, BLOCK_D)
    in_head = d < D
    # All arithmetic is in float32, whatever the cache holds.
    q = tl.load(q_ptr + b * q_stride + h * D + d, mask=in_head, other=0.0).to(tl.float32) * scale
    k_new = tl.load(k_new_ptr + b * k_stride + h_kv * D + d, mask=in_head, other=0.0).to(tl.float32)
    v_new = tl.load(v_new_ptr + b * v_stride + h_kv * D + d, mask=in_head, other=0.0).to(tl.float32)

    # The new token comes first, so that the running maximum is a score from the start.
    running_max = tl.sum(q * k_new, axis=0)
    denominator = 1.0
    acc = v_new

    context_len = tl.load(lens_ptr + b)
    for start in range(0, context_len, TILE):
        position = start + tl.arange(0, TILE)
        live = position < context_len
        # int64 before the multiplication: a large pool has more than 2^31 elements.
        block = tl.load(table_ptr + b * table_stride + position // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
        row = (block * (H // GROUP) + h_kv) * BLOCK_SIZE + position % BLOCK_SIZE
        offsets = row[:, None] * D + d[None, :]
        mask = live[:, None] & in_head[None, :]
        k = tl.load(k_cache_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_cache_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(live, tl.sum(k * q[None, :], axis=1), float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        rescale = tl.exp(running_max - new_max)
        weights = tl.exp(scores - new_max)
        denominator = denominator * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        running_max = new_max

    tl.store(out_ptr + (b * H + h) * D + d, (acc / denominator).to(out_ptr.dtype.element_ty), mask=in_head)


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
    """`reference.paged_attention_decode` in one kernel. A session's heads, the caches and table rows are contiguous."""
    B, H, D = q.shape
    out = q.new_empty(B, H, D)
    tensors = (q, k_layer, v_layer, block_table, context_lens, k_new, v_new, out)
    arguments = (*[tensor.dtype for tensor in tensors], 0, 0, 0, 0, 1.0)
    constants = (H, H // k_layer.shape[1], D, k_layer.shape[2], TILE, 1 << (D - 1).bit_length())
    aligned = (k_layer.data_ptr() | v_layer.data_ptr()) % 16 == 0
    launch = compiled(_paged_attn_decode_kernel, arguments, constants, q.device, WARPS, aligned=aligned)
    launch((B, H, 1), *tensors, q.stride(0), k_new.stride(0), v_new.stride(0), block_table.stride(0), D**-0.5)
    return out


class TritonAttention(ByLayer):
    """Paged attention of an engine, by the Triton kernel."""

    attention = staticmethod(paged_attention_decode)
