"""The Triton kernel that adds to a residual stream and normalises the sum: one program per token.

(Apex, FasterTransformer and Liger have kernels like it.)
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .compile import Dtypes, compiled
from .launch import Launch


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


@cache
def _launch(dtypes: Dtypes, C: int, rms: bool, aligned: bool, device: torch.device) -> Launch:
    """A binary belongs to one device."""
    constants = {"C": C, "BLOCK_C": triton.next_power_of_2(C), "RMS": rms}
    return compiled(_add_norm_kernel, [*dtypes, 1.0], aligned=aligned, **constants)


def add_norm(x: Tensor, delta: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The same as `reference.add_norm`: x + delta, rounded to their dtype, and the norm of that, both [N, C].

    All tensors are contiguous.
    """
    total, normed = torch.empty_like(x), torch.empty_like(x)
    tensors = (x, delta, weight, weight if bias is None else bias, total, normed)
    aligned = (x.data_ptr() | delta.data_ptr()) % 16 == 0
    launch = _launch(tuple([tensor.dtype for tensor in tensors]), x.shape[1], bias is None, aligned, x.device)
    launch((len(x), 1, 1), *tensors, eps)
    return total, normed
