"""The kernel that adds and normalises, against torch's sum and a layer norm in float64."""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.kernels import add_norm
from tests.kernels.harness import DEVICE, EPS, INTERPRETED, MARKS, ROUNDING, pairwise

pytestmark = MARKS
ARITHMETIC = 4e-6  # sums are in float32
# Triton's interpreter cuts off what a bfloat16 cannot hold: a GPU rounds.
DTYPES = [dtype for dtype in ROUNDING if not INTERPRETED or dtype != torch.bfloat16]


def inputs(N, C, dtype, mean=0.0, spread=1.0):
    """x, delta, weight and bias; the sums of x and delta lie around a mean."""
    generator = torch.Generator().manual_seed(0)
    x, delta = torch.randn(2, N, C, generator=generator) * torch.tensor([[[3.0]], [[1.0]]]) * spread
    weight, bias = torch.randn(2, C, generator=generator)
    return [tensor.to(DEVICE, dtype) for tensor in (x + mean, delta, weight, bias)]


def shifted(x):
    """The same in the middle of a buffer of NaN, so that wide reads are not possible."""
    buffer = torch.full((x.numel() + 2,), float("nan"), dtype=x.dtype, device=DEVICE)
    buffer[1:-1] = x.flatten()
    assert buffer[1:].data_ptr() % 16 != 0
    return buffer[1:-1].view(x.shape)


def adds_and_norms(*tensors, eps=EPS):
    """The sum has the bits of torch's, and what is normalised is that sum; inputs stay as they are."""
    x, delta, weight, bias = tensors
    was = [tensor.clone() for tensor in tensors]
    total, normed = add_norm(*tensors, eps)
    for tensor, before in zip(tensors, was, strict=True):
        assert torch.equal(tensor, before), "an input has changed"
    assert total.dtype == normed.dtype == x.dtype
    assert torch.equal(total, x + delta), "the sum is not torch's"
    right = F.layer_norm(total.double(), weight.shape, weight.double(), bias.double(), eps)
    scale = (right - bias).abs() + bias.abs()  # what is added last may nearly cancel
    wrong = (normed.double() - right).abs() / (scale + 1e-3)
    std = (total.double().var(1, correction=0, keepdim=True) + eps).sqrt()
    bound = ROUNDING[x.dtype] + ARITHMETIC * (1 + total.abs().max() / std.clamp(max=1))  # of a mean in float32
    assert (wrong <= bound).all(), f"the norm is not close: {float(wrong.max())} and not {float(bound.min())}"


@pairwise(
    only=lambda dtype, N, C, mean, *_: not mean or C > 3,
    dtype=DTYPES,
    N=[1, 5, 33],
    C=[1, 2, 3, 17, 100, 127, 128, 129, 768, 1600],
    mean=[0.0, 100.0, -1000.0],
    spread=[1.0, 2**-9, 0.0],  # of equal numbers the variance is 0: eps is all that is left to divide by
    eps=[1e-12, 1e-5, 0.5],
    unaligned=[(), (0,), (2,), (0, 1, 2, 3)],
)
def test_rows_of_any_size_number_and_mean(dtype, N, C, mean, spread, eps, unaligned):
    """Far from zero half precision rounds the sum to few digits: what is normalised must be what is stored."""
    tensors = inputs(N, C, dtype, mean, spread)
    adds_and_norms(*(shifted(x) if number in unaligned else x for number, x in enumerate(tensors)), eps=eps)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy's, inside the interpreter
@pairwise(dtype=DTYPES, bad=[float("nan"), float("inf"), "overflow"])
def test_a_row_with_nan_does_not_touch_its_neighbours(dtype, bad):
    x, delta, weight, bias = inputs(4, 24, dtype)
    before = add_norm(x, delta, weight, bias, EPS)
    x[1, 3] = delta[1, 3] = torch.finfo(dtype).max if bad == "overflow" else bad
    total, normed = add_norm(x, delta, weight, bias, EPS)
    assert torch.equal(total.isfinite(), (x + delta).isfinite())
    assert not total[1, 3].isfinite()
    assert normed[1].isnan().all()
    for after, was in zip((total, normed), before, strict=True):
        assert torch.equal(after[[0, 2, 3]], was[[0, 2, 3]])
