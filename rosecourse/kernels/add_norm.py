"""The Triton kernel that adds to a residual stream and normalises the sum: one program per token."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compile import compiled


@triton.jit(do_not_specialize_on_alignment=["weight_ptr", "bias_ptr"])
def _add_norm_kernel(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, sum_ptr, normed_ptr, eps,
    C: tl.constexpr, BLOCK_C: tl.constexpr, RMS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, BLOCK_C)
    inside = c < C
    weight = tl.load(weight_ptr + c, mask=inside, other=0.0).to(tl.float32)
    bias = 0.0 if RMS else tl.load(bias_ptr + c, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
    total = x + tl.load(delta_ptr + row + c, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(sum_ptr.dtype.element_ty)  # what the next one reads is what is normalised here
    tl.store(sum_ptr + row + c, rounded, mask=inside)
    total = rounded.to(tl.float32)
    # `div_rn`: the mean of equal numbers is that number
    mean = 0.0 if RMS else tl.div_rn(tl.sum(total, axis=0), C * 1.0)
    centred = tl.where(inside, total - mean, 0.0)
    std = tl.sqrt(tl.sum(centred * centred, axis=0) / C + eps)
    normed = centred / std * weight + bias
    tl.store(normed_ptr + row + c, normed.to(normed_ptr.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """`reference.add_norm` of contiguous tensors: x + delta, rounded to their dtype, and its norm, both [N, C]."""
    total, normed = torch.empty_like(x), torch.empty_like(x)
    tensors = (x, delta, weight, weight if bias is None else bias, total, normed)
    aligned = (x.data_ptr() | delta.data_ptr()) % 16 == 0
    C = x.shape[1]
    arguments, constants = (*[tensor.dtype for tensor in tensors], 1.0), (C, triton.next_power_of_2(C), bias is None)
    launch = compiled(_add_norm_kernel, arguments, constants, x.device, aligned=aligned)
    launch((len(x), 1, 1), *tensors, eps)
    return total, normed
