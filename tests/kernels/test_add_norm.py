"""The kernel that adds and normalises, against torch's sum and a layer norm in float64.

On a CPU it goes through the interpreter; on a GPU it runs natively, and `-m gpu` takes it, too.
"""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.kernels import add_norm
from tests.kernels.attention_cases import DEVICE, INTERPRETED, let_overflow_raise

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
EPS = 1e-5
# Half the distance of two neighbouring numbers, relative: what rounding the result may cost. Sums are in float32.
ROUNDING = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}
ARITHMETIC = 4e-6
# Triton's interpreter cuts off what a bfloat16 cannot hold: a GPU rounds.
DTYPES = [dtype for dtype in ROUNDING if not INTERPRETED or dtype != torch.bfloat16]
in_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture(autouse=True)
def overflow_raises(monkeypatch):
    let_overflow_raise(monkeypatch)


def inputs(N, C, dtype=torch.float32, mean=0.0, seed=0):
    """x, delta, weight and bias; the sums of x and delta lie around a mean."""
    generator = torch.Generator().manual_seed(seed)
    x, delta = torch.randn(2, N, C, generator=generator) * torch.tensor([[[3.0]], [[1.0]]])
    weight, bias = torch.randn(2, C, generator=generator)
    return [tensor.to(DEVICE, dtype) for tensor in (x + mean, delta, weight, bias)]


def adds_and_norms(function, x, delta, weight, bias, eps=EPS):
    """The sum has the bits of torch's, and what is normalised is that sum; inputs stay as they are."""
    tensors = x, delta, weight, bias
    was = [tensor.clone() for tensor in tensors]
    total, normed = function(*tensors, eps)
    for tensor, before in zip(tensors, was, strict=True):
        assert torch.equal(tensor, before), "an input has changed"
    assert total.dtype == normed.dtype == x.dtype
    assert torch.equal(total, x + delta), "the sum is not torch's"
    right = F.layer_norm(total.double(), weight.shape, weight.double(), bias.double(), eps)
    scale = (right - bias).abs() + bias.abs()  # what is added last may nearly cancel
    wrong = (normed.double() - right).abs() / (scale + 1e-3)
    bound = ROUNDING[x.dtype] + ARITHMETIC * (1 + float(total.abs().max()))  # the mean is subtracted in float32
    assert wrong.max() <= bound, f"the norm is not close: {float(wrong.max())} and not {bound}"


# Rows, their size, a mean of the sums.
CASES = [(5, C, 0.0) for C in (1, 2, 3, 17, 100, 127, 128, 129, 768, 1600)]
CASES += [(1, 24, 0.0), (33, 24, 0.0), (4, 96, 100.0), (4, 96, -1000.0)]


@in_dtypes
@pytest.mark.parametrize(("N", "C", "mean"), CASES)
def test_rows_of_any_size_number_and_mean(N, C, mean, dtype):
    """Far from zero half precision rounds the sum to few digits: what is normalised must be what is stored."""
    adds_and_norms(add_norm, *inputs(N, C, dtype, mean))


@in_dtypes
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_rows_of_equal_numbers(eps, dtype):
    """Their variance is 0: eps is all that is left to divide by."""
    x, delta, weight, bias = inputs(3, 20, dtype)
    adds_and_norms(add_norm, torch.full_like(x, 2.5), torch.full_like(delta, -0.5), weight, bias, eps)
    adds_and_norms(add_norm, x * 2**-9, delta * 0, weight, bias, eps)


@in_dtypes
@pytest.mark.parametrize("shifted", [(0,), (2,), (0, 1, 2, 3)])
def test_inputs_that_begin_anywhere(shifted, dtype):
    """In the middle of a buffer, so that wide reads are not possible; a binary for aligned ones was there before."""
    tensors = inputs(3, 40, dtype)
    adds_and_norms(add_norm, *tensors)
    for number in shifted:
        buffer = torch.full((tensors[number].numel() + 2,), float("nan"), dtype=dtype, device=DEVICE)
        buffer[1:-1] = tensors[number].flatten()
        tensors[number] = buffer[1:-1].view(tensors[number].shape)
        assert tensors[number].data_ptr() % 16 != 0
    adds_and_norms(add_norm, *tensors)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered")  # numpy's, inside the interpreter
@in_dtypes
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "overflow"])
def test_a_row_with_nan_does_not_touch_its_neighbours(bad, dtype):
    x, delta, weight, bias = inputs(4, 24, dtype)
    before = add_norm(x, delta, weight, bias, EPS)
    x[1, 3] = delta[1, 3] = torch.finfo(dtype).max if bad == "overflow" else bad
    total, normed = add_norm(x, delta, weight, bias, EPS)
    assert torch.equal(total.isfinite(), (x + delta).isfinite())
    assert not total[1, 3].isfinite()
    assert normed[1].isnan().all()
    for after, was in zip((total, normed), before, strict=True):
        assert torch.equal(after[[0, 2, 3]], was[[0, 2, 3]])
