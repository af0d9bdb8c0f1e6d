"""The Triton kernel of attention over prompts whose K and V are in the cache: chunks, and sessions that decode.

One program per tile of neighbouring rows of a session and K and V head. The rows of its product on the tensor cores are
tokens times the query heads that share the head. Which tile is where is decided on the device, so that a graph can hold
it. (vLLM's kernel for mixed batches in Triton cuts the rows so, too.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .appending_attention import LEAST, LOG2_E, _attend, _rows_of
from .compile import compiled
from .reference import PromptAttention

# Rows of a product, context positions that are read at a time, warps and stages: for heads of up to 64 numbers, and for
# larger ones. The fastest for mixed steps of Llama 1B and 8B on an H200.
SMALL_HEADS, LARGE_HEADS = (64, 128, 4, 2), (64, 32, 4, 2)


@triton.jit(
    do_not_specialize=["q_stride", "table_stride"],
    do_not_specialize_on_alignment=["q_ptr", "table_ptr", "tiles_ptr"],
)
def _prompt_attention_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, tiles_ptr, out_ptr, q_stride, table_stride, scale,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, FLOAT32: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    tile, h = tiles_ptr + tl.program_id(0) * 4, tl.program_id(1)
    num_rows = tl.load(tile + 1)
    if num_rows == 0:
        return
    first_row, first_position, session = tl.load(tile), tl.load(tile + 2), tl.load(tile + 3)
    r, d, t = tl.arange(0, ROWS), tl.arange(0, BLOCK_D), tl.arange(0, TILE)
    token = r // GROUP
    row, head = first_row + token, h * GROUP + r % GROUP
    is_head = (token < num_rows)[:, None] & (d < D)[None, :]
    dtype = tl.float32 if FLOAT32 else k_cache_ptr.dtype.element_ty
    q = tl.load(q_ptr + (row * q_stride + head * D)[:, None] + d[None, :], mask=is_head, other=0.0).to(dtype)

    top, total = tl.full((ROWS,), -3.4e38, tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    end = first_position + num_rows
    for start in tl.range(0, end, TILE, num_stages=STAGES):
        position = start + t
        live = position < end
        at = _rows_of(position, live, table_ptr + session * table_stride, 0, 0, h, H, BLOCK_SIZE, 0)
        offsets, mask = at[:, None] * D + d[None, :], live[:, None] & (d < D)[None, :]
        k = tl.load(k_cache_ptr + offsets, mask=mask, other=0.0).to(dtype)
        v = tl.load(v_cache_ptr + offsets, mask=mask, other=0.0).to(dtype)
        seen = position[None, :] <= (first_position + token)[:, None]
        top, total, acc = _attend(q, k, v, seen, top, total, acc, scale)

    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * (H * GROUP) + head)[:, None] * D + d[None, :], out, mask=is_head)


def tiles_of(last_rows: Tensor, positions: Tensor, most: int) -> Tensor:
    """Rows of one session, at most so many: int64 [tiles, 4], first row, number of rows, first position and session.

    Some have no rows: how many tiles there are depends on shapes alone. last_rows [B], positions [N]: of
    `PromptTokens`.
    """
    ends = last_rows + 1
    starts = F.pad(ends[:-1], (1, 0))
    counts = (ends - starts + most - 1) // most
    tile_ends = counts.cumsum(0)
    tile = torch.arange(len(positions) // most + len(ends), device=ends.device)
    session = torch.searchsorted(tile_ends, tile, right=True).clamp(max=len(ends) - 1)
    first = starts[session] + (tile - (tile_ends - counts)[session]) * most
    num_rows = (ends[session] - first).clamp(0, most)
    return torch.stack([first, num_rows, positions[first.clamp(max=len(positions) - 1)], session], 1)


def sizes_for(heads_per_kv_head: int, D: int) -> tuple[int, int, int, int]:
    """As `SMALL_HEADS`, with rows for all query heads that share a head of K and V."""
    rows, *others = SMALL_HEADS if D <= 64 else LARGE_HEADS
    return (max(rows, triton.next_power_of_2(heads_per_kv_head)), *others)


def prompt_attention(q: Tensor, k_layer: Tensor, v_layer: Tensor, block_table: Tensor, tiles: Tensor) -> Tensor:
    """`reference.prompt_attention`. tiles: of `tiles_of`, of rows that a product of `sizes_for` has room for."""
    N, H, D = q.shape
    _, H_kv, block_size, _ = k_layer.shape
    rows, tile, warps, stages = sizes_for(H // H_kv, D)
    out = q.new_empty(N, H, D)
    tensors = (q, k_layer, v_layer, block_table, tiles, out)
    float32 = k_layer.dtype == torch.float32 or q.device.type == "cpu"  # interpreted
    block_d = max(LEAST, triton.next_power_of_2(D))
    constants = (H_kv, H // H_kv, D, block_size, rows, tile, float32, block_d, stages)
    aligned = (k_layer.data_ptr() | v_layer.data_ptr()) % 16 == 0
    arguments = (*[tensor.dtype for tensor in tensors], 0, 0, 1.0)
    launch = compiled(_prompt_attention_kernel, arguments, constants, q.device, warps, aligned=aligned)
    launch((len(tiles), H_kv, 1), *tensors, q.stride(0), block_table.stride(0), LOG2_E * D**-0.5)
    return out


class TritonPromptAttention(PromptAttention):
    """Attention of prompts in the cache, by the Triton kernel."""

    attention = staticmethod(prompt_attention)

    def where(self, last_rows: Tensor, positions: Tensor) -> tuple[Tensor]:
        rows, *_ = sizes_for(self.heads_per_kv_head, self.kv.k_layers[0].shape[-1])
        return (tiles_of(last_rows, positions, rows // self.heads_per_kv_head),)
