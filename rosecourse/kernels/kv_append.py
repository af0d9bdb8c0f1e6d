"""Triton kernels that write one token's K and V for each session of a batch into the blocks of a layer.

Caches are contiguous [num_blocks, H, block_size, D]; new K and V are [B, H, D], contiguous for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from .compile import compiled
from .launch import Launch

TENSORS = ["k_cache_ptr", "v_cache_ptr", "key_ptr", "value_ptr", "batch_idx_ptr", "block_idx_ptr", "pos_ptr"]
STRIDES = ["key_stride", "value_stride"]


@triton.jit
def _write(
    k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, block, pos,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    """K and V of one token to a slot of a block: all heads and their dimensions in one row."""
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(k_ptr + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(v_ptr + hd, mask=inside), mask=inside)


# One binary serves all calls: tensors may begin anywhere in a buffer, and strides may be any. Without this an odd batch
# would be compiled for while somebody waits for the next token.
@triton.jit(do_not_specialize=STRIDES, do_not_specialize_on_alignment=TENSORS)
def _kv_append_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, batch_idx_ptr, block_idx_ptr, pos_ptr, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    b = tl.load(batch_idx_ptr + i).to(tl.int64)
    block = tl.load(block_idx_ptr + i).to(tl.int64)
    pos = tl.load(pos_ptr + i)
    k_ptr, v_ptr = key_ptr + b * key_stride, value_ptr + b * value_stride
    _write(k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, block, pos, H, D, BLOCK_SIZE, BLOCK_HD)


# `pos` is another number at each step: without do_not_specialize Triton would compile again for some of them.
@triton.jit(do_not_specialize=["pos", *STRIDES], do_not_specialize_on_alignment=TENSORS)
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    k_ptr, v_ptr = key_ptr + b * key_stride, value_ptr + b * value_stride
    _write(k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, block, pos, H, D, BLOCK_SIZE, BLOCK_HD)


@triton.jit(do_not_specialize=["table_stride", *STRIDES], do_not_specialize_on_alignment=["table_ptr", *TENSORS])
def _kv_append_by_table_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, table_ptr, pos_ptr, table_stride, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    pos = tl.load(pos_ptr + b)
    block = tl.load(table_ptr + b * table_stride + pos // BLOCK_SIZE).to(tl.int64)
    k_ptr, v_ptr = key_ptr + b * key_stride, value_ptr + b * value_stride
    _write(k_cache_ptr, v_cache_ptr, k_ptr, v_ptr, block, pos % BLOCK_SIZE, H, D, BLOCK_SIZE, BLOCK_HD)


def _compiled(kernel: Any, tensors: Sequence[Tensor], num_ints: int) -> Launch:
    """A kernel for tensors like these, the cache of K first, followed by so many integers."""
    _, H, block_size, D = tensors[0].shape
    arguments = (*[tensor.dtype for tensor in tensors], *[0] * num_ints)
    return compiled(kernel, arguments, (H, D, block_size, 1 << (H * D - 1).bit_length()), tensors[0].device)


def kv_append_triton(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    batch_idx: Tensor,
    block_idx: Tensor,
    pos: Tensor,
) -> None:
    """For each i: session batch_idx[i] of key_new, value_new goes to slot pos[i] of block block_idx[i]; ints [n]."""
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
    launch = _compiled(_kv_append_kernel, tensors, 2)
    launch((len(batch_idx), 1, 1), *tensors, key_new.stride(0), value_new.stride(0))


def kv_append_triton_full_batch(
    k_cache_layer: Tensor, v_cache_layer: Tensor, key_new: Tensor, value_new: Tensor, block_idx: Tensor, pos: int
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, block_idx)
    launch = _compiled(_kv_append_full_batch_kernel, tensors, 3)
    launch((len(block_idx), 1, 1), *tensors, pos, key_new.stride(0), value_new.stride(0))


def kv_append_by_table(
    k_cache_layer: Tensor,
    v_cache_layer: Tensor,
    key_new: Tensor,
    value_new: Tensor,
    block_table: Tensor,
    positions: Tensor,
) -> None:
    """Session b: to slot positions[b] % block_size of block block_table[b, positions[b] // block_size]."""
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, block_table, positions)
    launch = _compiled(_kv_append_by_table_kernel, tensors, 3)
    launch((len(positions), 1, 1), *tensors, block_table.stride(0), key_new.stride(0), value_new.stride(0))
