"""How exact a norm is that is folded into the product after it, on rows as trained models have them, and on worse."""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.kernels.fused import FusedLinears, Stream, folded
from rosecourse.kernels.tiles import MOST_ROWS
from tests.kernels.small_products import DEVICE, EPS, normed, numbers, stats_of, stream_of, weights

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
C, N, B = 768, 48, 16
MORE = 1.25  # times the error of a norm and a product one after another


def rows(kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Random; a column of 3000, and its like, as trained GPT-2s have; a large mean; all equal but for rounding."""
    x = numbers(B, C, dtype=torch.float32)
    if kind == "outliers":
        x[:, 138], x[:, 447] = 3000.0, -400.0
    elif kind == "mean":
        x += 40.0
    elif kind == "one outlier a row":
        x[torch.arange(B), torch.arange(B) * 31] = 1000.0
    return x.to(dtype)


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """The root of the mean square."""
    return float((out.double() - expected).square().mean().sqrt())


def errors(kind: str, dtype: torch.dtype) -> tuple[float, float]:
    """Of the folded norm, and of a norm whose result is rounded before the product, both against float64."""
    x, (gain, shift, weight, bias) = rows(kind, dtype), weights(C, N, dtype)
    expected = normed(x, gain, shift) @ weight.double() + bias.double()
    linears = FusedLinears(DEVICE, dtype)
    out = linears.norm_linear(stream_of(linears, x), folded(gain, shift, weight, bias), EPS)
    rounded = normed(x, gain, shift).to(dtype).double() @ weight.double() + bias.double()
    return error(out, expected), error(rounded.to(dtype), expected)


KINDS = ["random", "outliers", "mean", "one outlier a row"]
halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=lambda x: str(x).removeprefix("torch."))


@halves
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_those_of_a_norm_of_its_own(kind, dtype):
    if dtype == torch.bfloat16 and DEVICE.type == "cpu":
        pytest.skip("Triton's interpreter cuts off where it should round to bfloat16")
    folded_one, own = errors(kind, dtype)
    assert folded_one <= MORE * own


def test_tiles_with_means_far_apart():
    """What the tiles know is put together: their own deviations are small beside that of the row."""
    x = numbers(5, 96, dtype=torch.float32) + torch.arange(96, device=DEVICE) // 32 * 100.0
    w = folded(*weights(96, 20, torch.float32))
    stats = F.pad(stats_of(x, 32).float(), (0, MOST_ROWS - len(x)))[..., : len(x)]
    stream = Stream(x, stats, 32)
    out = FusedLinears(DEVICE, torch.float32).norm_linear(stream, w, EPS)
    expected = normed(x) @ w.weight.double().T + w.bias.double()
    torch.testing.assert_close(out.double(), expected, atol=1e-4, rtol=1e-4)
