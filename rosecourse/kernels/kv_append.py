"""Triton kernels that write one token's K and V for each session of a batch into the blocks of a layer.

The caches are contiguous [num_blocks, H, block_size, D], where H counts K and V heads. K and V of the new tokens are
[B, H, D]: those of one token are contiguous, and the tensors may be views of one fused projection.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl

from .compile import Dtypes, compiled
from .launch import Launch
from .reference import Size, require_same_heads

TENSORS = ["k_cache_ptr", "v_cache_ptr", "key_ptr", "value_ptr", "batch_idx_ptr", "block_idx_ptr", "pos_ptr"]
STRIDES = ["key_stride", "value_stride"]


# One binary serves all calls: tensors may begin anywhere in a buffer, and strides may be any. Without this an odd batch
# would be compiled for anew, in the middle of somebody's stream of tokens.
@triton.jit(do_not_specialize=STRIDES, do_not_specialize_on_alignment=TENSORS)
def _kv_append_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, batch_idx_ptr, block_idx_ptr, pos_ptr, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    b = tl.load(batch_idx_ptr + i).to(tl.int64)
    block = tl.load(block_idx_ptr + i).to(tl.int64)
    pos = tl.load(pos_ptr + i)
    hd = tl.arange(0, BLOCK_HD)  # all heads and their dimensions in one row
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


# `pos` is another number at each step: without do_not_specialize Triton would compile anew for some of them.
@triton.jit(do_not_specialize=["pos", *STRIDES], do_not_specialize_on_alignment=TENSORS)
def _kv_append_full_batch_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, block_idx_ptr, pos, key_stride, value_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    block = tl.load(block_idx_ptr + b).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["table_stride", *STRIDES], do_not_specialize_on_alignment=["table_ptr", *TENSORS])
def _kv_append_by_table_kernel(
    k_cache_ptr, v_cache_ptr, key_ptr, value_ptr, table_ptr, pos_ptr,
    key_stride, value_stride, table_stride,
    H: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HD: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    pos = tl.load(pos_ptr + b)
    block = tl.load(table_ptr + b * table_stride + pos // BLOCK_SIZE).to(tl.int64)
    hd = tl.arange(0, BLOCK_HD)
    inside = hd < H * D
    target = ((block * H + hd // D) * BLOCK_SIZE + pos % BLOCK_SIZE) * D + hd % D
    tl.store(k_cache_ptr + target, tl.load(key_ptr + b * key_stride + hd, mask=inside), mask=inside)
    tl.store(v_cache_ptr + target, tl.load(value_ptr + b * value_stride + hd, mask=inside), mask=inside)


def _compile(kernel: Any, num_ints: int, dtypes: Dtypes, sizes: tuple[Size, ...], device: torch.device) -> Launch:
    """A kernel for tensors of these types, followed by so many integers; a binary belongs to one device.

    sizes: of the caches of K and V, and of one new token's K and V. Raises `ConfigError` for heads that differ.
    """
    k_cache, v_cache, key_new, value_new = sizes
    require_same_heads(k_cache, v_cache, key_new=key_new, value_new=value_new)
    _, H, block_size, D = k_cache
    constants = {"H": H, "D": D, "BLOCK_SIZE": block_size, "BLOCK_HD": triton.next_power_of_2(H * D)}
    return compiled(kernel, [*dtypes, *[0] * num_ints], **constants)


_launch = cache(partial(_compile, _kv_append_kernel, 2))
_launch_full_batch = cache(partial(_compile, _kv_append_full_batch_kernel, 3))
_launch_by_table = cache(partial(_compile, _kv_append_by_table_kernel, 3))


def kv_append_triton(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    batch_idx: torch.Tensor,
    block_idx: torch.Tensor,
    pos: torch.Tensor,
) -> None:
    """For each i: session batch_idx[i] of key_new, value_new goes to slot pos[i] of block block_idx[i]; ints [n]."""
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, batch_idx, block_idx, pos)
    sizes = k_cache_layer.shape, v_cache_layer.shape, key_new.shape[1:], value_new.shape[1:]
    launch = _launch(tuple([tensor.dtype for tensor in tensors]), sizes, k_cache_layer.device)
    launch((len(batch_idx), 1, 1), *tensors, key_new.stride(0), value_new.stride(0))


def kv_append_triton_full_batch(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_idx: torch.Tensor,
    pos: int,
) -> None:
    """Session b of key_new, value_new goes to slot `pos` of block block_idx[b]; ints [B]."""
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, block_idx)
    sizes = k_cache_layer.shape, v_cache_layer.shape, key_new.shape[1:], value_new.shape[1:]
    launch = _launch_full_batch(tuple([tensor.dtype for tensor in tensors]), sizes, k_cache_layer.device)
    launch((len(block_idx), 1, 1), *tensors, pos, key_new.stride(0), value_new.stride(0))


def kv_append_by_table(
    k_cache_layer: torch.Tensor,
    v_cache_layer: torch.Tensor,
    key_new: torch.Tensor,
    value_new: torch.Tensor,
    block_table: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Session b goes to slot positions[b] % block_size of block block_table[b, positions[b] // block_size].

    block_table: int [B, max_blocks], rows contiguous; positions: int [B].
    """
    tensors = (k_cache_layer, v_cache_layer, key_new, value_new, block_table, positions)
    sizes = k_cache_layer.shape, v_cache_layer.shape, key_new.shape[1:], value_new.shape[1:]
    launch = _launch_by_table(tuple([tensor.dtype for tensor in tensors]), sizes, k_cache_layer.device)
    launch((len(positions), 1, 1), *tensors, key_new.stride(0), value_new.stride(0), block_table.stride(0))
