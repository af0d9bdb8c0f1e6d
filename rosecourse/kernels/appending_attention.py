"""The Triton kernel of paged decode attention that also appends: it has the new K and V in its registers.

One program per session and K and V head. The query heads that share it are the rows of a product on the tensor cores,
which take 16. A program asks for K and V of earlier steps, then for angles, and waits for the kernel before it. Where
there are few programs, several share a context, and a second kernel puts their parts together: Flash-Decoding (Dao et
al., 2023). The order of the sums depends on the shapes alone.
"""

from __future__ import annotations

from functools import cache, partial

import torch
import triton
import triton.language as tl

from ..models.shape import Rotary
from .compile import Dtypes, compiled
from .dependent_launch import depend
from .launch import Launch
from .reference import ByLayer

LOG2_E = 1.4426950408889634
TILE = 32  # context positions that a program reads at a time, at most
LEAST = 16  # rows or columns that a product on the tensor cores has
LONGEST_ROW = 1024  # blocks of a table row that a program keeps in its registers
ENOUGH = 128  # programs: so many keep a GPU busy
MANY = 768  # programs: so many keep its memory busy, for each waits for its tiles
LONG = 768  # tokens: with contexts that grow so long, this is worth the second kernel
MOST_SPLITS = 8  # of a context
AS_THEY_ARE = Rotary()
LARGE_TILE = 8192  # bytes of K, or of V: of larger ones fewer fit into the 99 KB of shared memory that small GPUs have


@triton.jit
def _rows_of(position, mask, table_row, blocks, i, h, H: tl.constexpr, BLOCK_SIZE: tl.constexpr, ROW: tl.constexpr):
    """Where the head h of positions lies in a layer, seen as rows [num_blocks * H * BLOCK_SIZE, D]. ROW: of one."""
    if ROW:
        block = tl.sum(tl.where(i == position // BLOCK_SIZE, blocks, 0), axis=0)
    else:
        block = tl.load(table_row + position // BLOCK_SIZE, mask=mask, other=0)
    # int64 before the multiplication: a large pool has more than 2^31 elements.
    return (block.to(tl.int64) * H + h) * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def _turn_at(rotations_ptr, position, d, D: tl.constexpr, ROTARY: tl.constexpr):
    """cos and sin for each number of a head, which turns with the one half a head away; 1 and 0 if it does not turn."""
    cos, sin = 1.0, 0.0
    if ROTARY:
        angle = rotations_ptr + position.to(tl.int64) * D + d % (D // 2)
        cos = tl.load(angle, mask=d < D, other=0.0).to(tl.float32)
        sin = tl.load(angle + D // 2, mask=d < D, other=0.0).to(tl.float32)
        sin = tl.where(d < D // 2, -sin, sin)
    return cos, sin


@triton.jit
def _heads(
    head, d, mask, gain_ptr, cos, sin, D: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr
):
    """Heads of q, or one of k, whose numbers d begin at the pointers `head`: under their norm and turned, float32."""
    x = tl.load(head + d, mask=mask, other=0.0).to(tl.float32)
    pair = (d + D // 2) % D  # what a number is turned with
    rstd = 1.0
    if NORM:
        rstd = 1.0 / tl.sqrt(tl.sum(x * x, axis=-1, keep_dims=True) / D + EPS)
        x *= rstd * tl.load(gain_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    if ROTARY:
        other = tl.load(head + pair, mask=mask, other=0.0).to(tl.float32)
        if NORM:
            other *= rstd * tl.load(gain_ptr + pair, mask=d < D, other=0.0).to(tl.float32)
        x = x * cos + other * sin
    return x


@triton.jit
def _of_new_token(
    q_heads, k_head, v_head, cos, sin, gains_ptr, d, is_head, Q_TYPE: tl.constexpr, KV_TYPE: tl.constexpr,
    D: tl.constexpr, ROTARY: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """q of the heads that share K and V, [ROWS, BLOCK_D], and k and v: [BLOCK_D]. They begin at the pointers."""
    if ROTARY or NORM:
        q = _heads(q_heads, d[None, :], is_head, gains_ptr, cos, sin, D, ROTARY, NORM, EPS)
        k = _heads(k_head, d, d < D, gains_ptr + D, cos, sin, D, ROTARY, NORM, EPS)
    else:
        q = tl.load(q_heads + d[None, :], mask=is_head, other=0.0)
        k = tl.load(k_head + d, mask=d < D, other=0.0)
    v = tl.load(v_head + d, mask=d < D, other=0.0)
    return q.to(Q_TYPE), k.to(KV_TYPE), v.to(KV_TYPE)


@triton.jit
def _attend(q, k, v, seen, top, total, acc, scale):
    """The online softmax over one tile more, of which each row sees some."""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    # Scaled after the subtraction, which is exact for scores near the maximum, however large they are.
    rescale = tl.exp2((top - new_top) * scale)
    weights = tl.exp2((scores - new_top[:, None]) * scale)
    acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
    return new_top, total * rescale + tl.sum(weights, axis=1), acc


@triton.jit
def _attend_to_new(q, k_new, v_new, top, total, acc, scale):
    """The online softmax over one position more, whose K and V are in registers."""
    score = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], axis=1)
    new_top = tl.maximum(top, score)
    rescale, weight = tl.exp2((top - new_top) * scale), tl.exp2((score - new_top) * scale)
    acc = acc * rescale[:, None] + weight[:, None] * v_new.to(tl.float32)[None, :]
    return new_top, total * rescale + weight, acc


# ROW: a power of two that MAX_BLOCKS fits into; 0 where the table is read at each position. FLOAT32: products are in
# float32, whatever the cache holds.
@triton.jit(
    do_not_specialize=["q_stride", "k_stride", "v_stride", "table_stride"],
    do_not_specialize_on_alignment=["q_ptr", "table_ptr", "lens_ptr", "k_new_ptr", "v_new_ptr"],
)
def _attend_and_append_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, table_ptr, lens_ptr, k_new_ptr, v_new_ptr, out_ptr, parts_ptr,
    q_stride, k_stride, v_stride, table_stride, scale, rotations_ptr, gains_ptr,
    H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, MAX_BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr, TILE: tl.constexpr, ROW: tl.constexpr, FLOAT32: tl.constexpr, PDL: tl.constexpr,
    ROTARY: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    b, h, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    g, d, t, i = tl.arange(0, ROWS), tl.arange(0, BLOCK_D), tl.arange(0, TILE), tl.arange(0, max(ROW, 1))
    table_row = table_ptr + b * table_stride
    blocks = tl.load(table_row + i, mask=i < (MAX_BLOCKS if ROW else 0), other=0).to(tl.int32)  # all of them, once
    # Like the row, of the step before; the position of the new token, too. In 32 bits the loop has fewer instructions.
    context_len = tl.load(lens_ptr + b).to(tl.int32)
    dtype = tl.float32 if FLOAT32 else k_cache_ptr.dtype.element_ty
    in_head = d < D
    heads = (h * GROUP + g)[:, None] * D + d[None, :]
    is_head = (g < GROUP)[:, None] & in_head[None, :]
    q, k_new = tl.zeros((ROWS, BLOCK_D), dtype), tl.zeros((BLOCK_D,), k_cache_ptr.dtype.element_ty)
    v_new = k_new
    # Below every score, so that a part of nothing weighs nothing; two of -inf would have no difference.
    top, total = tl.full((ROWS,), -3.4e38, tl.float32), tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, BLOCK_D), tl.float32)
    span = tl.cdiv(tl.cdiv(context_len, TILE), SPLITS) * TILE
    begin = split * span
    end = tl.maximum(tl.minimum(context_len, begin + span), begin + 1)  # one tile at least, which may hold nothing
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        position = start + t
        live = position < context_len
        if ROW:  # a tile is in one block: only where it begins has to be found
            first, rows = _rows_of(start, True, table_row, blocks, i, h, H, BLOCK_SIZE, ROW), t
        else:
            first, rows = 0, _rows_of(position, live, table_row, blocks, i, h, H, BLOCK_SIZE, ROW)
        offsets = rows[:, None] * D + d[None, :]
        mask = live[:, None] & in_head[None, :]
        k = tl.load(k_cache_ptr + first * D + offsets, mask=mask, other=0.0).to(dtype)
        v = tl.load(v_cache_ptr + first * D + offsets, mask=mask, other=0.0).to(dtype)
        if start == begin:  # the first tiles, of steps before, are on their way
            cos, sin = _turn_at(rotations_ptr, context_len, d, D, ROTARY)
            depend(PDL)
            q, k_new, v_new = _of_new_token(
                q_ptr + b * q_stride + (h * GROUP + g)[:, None] * D, k_new_ptr + b * k_stride + h * D,
                v_new_ptr + b * v_stride + h * D, cos, sin, gains_ptr, d, is_head,
                dtype, k_cache_ptr.dtype.element_ty, D, ROTARY, NORM, EPS,
            )  # fmt: skip
        top, total, acc = _attend(q, k, v, live[None, :], top, total, acc, scale)
    if split == 0:  # the new token is the first one's, and comes last
        slot = _rows_of(context_len, True, table_row, blocks, i, h, H, BLOCK_SIZE, ROW)
        tl.store(k_cache_ptr + slot * D + d, k_new, mask=in_head)
        tl.store(v_cache_ptr + slot * D + d, v_new, mask=in_head)
        top, total, acc = _attend_to_new(q, k_new, v_new, top, total, acc, scale)
    if SPLITS == 1:
        out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + b * (H * GROUP * D) + heads, out, mask=is_head)
    else:  # a part is D numbers, the maximum and the sum
        part = parts_ptr + ((b * H * GROUP + h * GROUP + g) * SPLITS + split) * (D + 2)
        tl.store(part[:, None] + d[None, :], acc, mask=is_head)
        tl.store(part + D, top, mask=g < GROUP)
        tl.store(part + D + 1, total, mask=g < GROUP)


@triton.jit
def _combine_kernel(
    parts_ptr, out_ptr, scale, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, PDL: tl.constexpr
):
    """The parts of one session and query head, in their order."""
    head = tl.program_id(0).to(tl.int64)
    depend(PDL)
    s, d = tl.arange(0, SPLITS), tl.arange(0, BLOCK_D)
    part = parts_ptr + (head * SPLITS + s) * (D + 2)
    acc = tl.load(part[:, None] + d[None, :], mask=(d < D)[None, :], other=0.0)
    top, total = tl.load(part + D), tl.load(part + D + 1)
    share = tl.exp2((top - tl.max(top, axis=0)) * scale)
    out = tl.sum(acc * share[:, None], axis=0) / tl.sum(total * share, axis=0)
    tl.store(out_ptr + head * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


@cache
def _launch(
    dtypes: Dtypes,
    H: int,
    k_layer: torch.Size,
    max_blocks: int,
    splits: int,
    turn: tuple[bool, bool, float],
    pdl: bool,
    aligned: bool,
    device: torch.device,
) -> Launch:
    """The kernel for tensors of these types; before the last two are four strides and the scale. For one device.

    H: heads of q. k_layer: the size of a layer's K. splits: of a context, a power of two. turn: ROTARY, NORM and EPS.
    """
    _, H_kv, block_size, D = k_layer
    # A tile must lie in one block if its block is to be read off the row: else it is looked up for each position.
    fitting = min(TILE, block_size & -block_size)  # the largest power of two that divides a block
    by_row = fitting >= LEAST and max_blocks <= LONGEST_ROW
    tile, row = (fitting, triton.next_power_of_2(max_blocks)) if by_row else (TILE, 0)
    rows, block_d = (max(LEAST, triton.next_power_of_2(size)) for size in (H // H_kv, D))
    stages = 3 if tile * block_d * dtypes[1].itemsize <= LARGE_TILE else 2  # tiles on their way, and one more
    float32 = dtypes[1] == torch.float32 or (dtypes[1] == torch.bfloat16 and device.type == "cpu")  # interpreted
    # One waits for nobody; float32 has no tensor cores and needs more registers, and so do large heads.
    warps = 4 if float32 else 1 + (block_d >= 128)
    shape = (H_kv, H // H_kv, D, block_size, max_blocks, splits, tile, row)
    arguments = (*dtypes[:-2], 0, 0, 0, 0, 1.0, *dtypes[-2:])
    constants = (*shape, float32, pdl, *turn, rows, block_d, stages)
    return compiled(_attend_and_append_kernel, arguments, constants, device, warps, pdl, aligned)


def splits_for(programs: int, longest: int) -> int:
    """Into how many parts contexts of up to so many tokens are split, so that there are enough programs: 1, 2, 4, 8."""
    wanted = MANY // programs if longest >= LONG else min(ENOUGH // programs, longest // TILE)
    return 1 << max(1, min(wanted, MOST_SPLITS)).bit_length() - 1


def attend_and_append(
    q: torch.Tensor,
    k_layer: torch.Tensor,
    v_layer: torch.Tensor,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    max_context_len: int,
    k_new: torch.Tensor,
    v_new: torch.Tensor,
    rotary: Rotary = AS_THEY_ARE,
    pdl: bool = False,
) -> torch.Tensor:
    """`paged_attention.paged_attention_decode`, with the same tensors, which appends as well.

    k_new[b] and v_new[b] get to position context_lens[b] of session b, whose block is its own alone. rotary: what
    becomes of the heads of q and k_new first. pdl: see `compiled`; block tables and context_lens are older than the
    kernel before then, as are K and V in the cache.
    """
    B, H, D = q.shape
    H_kv = k_new.shape[1]
    splits = splits_for(B * H_kv, max_context_len)
    turn = rotary.rotations is not None, rotary.gains is not None, rotary.eps
    out = q.new_empty(B, H, D)
    parts = q.new_empty((B, H, splits, D + 2) if splits > 1 else 0, dtype=torch.float32)
    tensors = (q, k_layer, v_layer, block_table, context_lens, k_new, v_new, out, parts)
    more = tuple([out if part is None else part for part in rotary[:2]])
    aligned = (k_layer.data_ptr() | v_layer.data_ptr()) % 16 == 0
    dtypes = tuple([tensor.dtype for tensor in (*tensors, *more)])
    launch = _launch(dtypes, H, k_layer.shape, block_table.shape[1], splits, turn, pdl, aligned, q.device)
    strides = q.stride(0), k_new.stride(0), v_new.stride(0), block_table.stride(0)
    scale = LOG2_E * D**-0.5
    launch((B, H_kv, splits), *tensors, *strides, scale, *more)
    if splits > 1:
        constants = (D, splits, triton.next_power_of_2(D), pdl)
        combine = compiled(_combine_kernel, (torch.float32, out.dtype, 1.0), constants, q.device, 1, pdl)
        combine((B * H, 1, 1), parts, out, scale)
    return out


class AppendingAttention(ByLayer):
    """Paged attention of an engine that keeps one table for all layers; it appends, and turns q and k, too."""

    attention = staticmethod(attend_and_append)
    takes_rotary = True
    __call__ = ByLayer.run


class EarlyAttention(AppendingAttention):
    """The same, of which each kernel starts before the one before it has ended."""

    attention = staticmethod(partial(attend_and_append, pdl=True))
