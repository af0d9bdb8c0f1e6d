"""Small matrix products with what surrounds them, against plain torch in float64, at sizes around the tiles' edges.

On a CPU they go through the interpreter, which raises where an integer overflows; on a GPU they run natively.
"""

import pytest
import torch
import torch.nn.functional as F

from rosecourse import ConfigError
from rosecourse.kernels.fused import FusedLinears, Stream, folded
from tests.kernels.attention_cases import let_overflow_raise
from tests.kernels.small_products import (
    DEVICE,
    EPS,
    ROUNDING,
    Guards,
    is_close,
    normed,
    numbers,
    stats_of,
    stream_of,
    weights,
    with_guards,
)

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
by_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=lambda x: str(x).removeprefix("torch."))
# Rows, inputs, outputs.
SIZES = [(1, 8, 1), (2, 33, 31), (16, 64, 32), (17, 65, 33), (65, 128, 40), (130, 40, 70)]
IN_PARTS = [(1, 512, 16), (5, 1025, 33), (70, 700, 40)]  # too few tiles: the inputs are split
# Each size in two dtypes and with and without GELU; each dtype with and without GELU.
GRID = [(tuple(ROUNDING)[(i + j) % 3], bool(j), *size) for i, size in enumerate(SIZES + IN_PARTS) for j in range(2)]


@pytest.fixture(autouse=True)
def guards(monkeypatch):
    """Nothing writes past the end of what it was given."""
    let_overflow_raise(monkeypatch)
    made = Guards(monkeypatch)
    yield made
    made.check()


@by_dtype
@pytest.mark.parametrize(("B", "C"), [(1, 1), (3, 7), (16, 64), (33, 100), (2, 768)])
def test_embed(dtype, B, C):
    wte, wpe = numbers(50, C, dtype=dtype), numbers(9, C, dtype=dtype, seed=1)
    token_ids, positions = torch.arange(B, device=DEVICE) * 7 % 50, torch.arange(B, device=DEVICE) * 5 % 9
    stream = FusedLinears(DEVICE, dtype).embed(token_ids, positions, wte, wpe)
    expected = wte[token_ids] + wpe[positions]
    if dtype == torch.bfloat16 and DEVICE.type == "cpu":  # the interpreter cuts off where it should round
        torch.testing.assert_close(stream.x, expected, atol=0, rtol=2**-7)
    else:
        assert torch.equal(stream.x, expected)
    torch.testing.assert_close(stream.stats.double(), stats_of(stream.x, C), atol=1e-5, rtol=1e-5)


def test_an_embedding_of_more_than_2_to_the_31_numbers():
    """Memory that is not used is not touched."""
    C = 1024
    wte = torch.empty(2**31 // C + 2, C, dtype=torch.float16, device=DEVICE)
    wte[-1] = numbers(C, dtype=torch.float16)
    last, wpe = torch.tensor([len(wte) - 1], device=DEVICE), numbers(2, C, dtype=torch.float16)
    stream = FusedLinears(DEVICE, torch.float16).embed(last, torch.ones_like(last), wte, wpe)
    assert torch.equal(stream.x, (wte[-1] + wpe[1])[None])


@pytest.mark.parametrize(("dtype", "gelu", "B", "K", "N"), GRID)
def test_a_norm_and_a_product(dtype, gelu, B, K, N):
    linears, x = FusedLinears(DEVICE, dtype), numbers(B, K, dtype=dtype, shift=0.5)
    w = with_guards(folded(*weights(K, N, dtype)))
    out = linears.norm_linear(stream_of(linears, x), w, EPS, gelu)
    expected = normed(x) @ w.weight.double().T + w.bias.double()
    # The mean is taken off after the product.
    centre = x.double().mean(1).abs() / (x.double().var(1, unbiased=False) + EPS).sqrt()
    size = (normed(x).abs() + centre[:, None]) @ w.weight.double().abs().T + w.bias.double().abs()
    is_close(out, F.gelu(expected, approximate="tanh") if gelu else expected, size)
    assert not linears.counters.any()


@pytest.mark.parametrize(("dtype", "_", "B", "K", "N"), GRID)
def test_a_product_and_a_sum(dtype, _, B, K, N):
    linears, x, h = FusedLinears(DEVICE, dtype), numbers(B, N, dtype=dtype), numbers(B, K, dtype=dtype, seed=1)
    w = with_guards(folded(None, None, *weights(K, N, dtype)[2:]))
    terms = x.double(), h.double() @ w.weight.double().T, w.bias.double()
    size = terms[0].abs() + h.double().abs() @ w.weight.double().abs().T + terms[2].abs()
    stream = linears.linear_add(h, w, Stream(x, torch.empty(0), N))
    assert stream.x is x
    is_close(x, sum(terms), size)
    torch.testing.assert_close(stream.stats.double(), stats_of(x, stream.width), atol=1e-4, rtol=1e-5)
    assert not linears.counters.any()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="takes minutes through the interpreter")
@pytest.mark.parametrize("B", [1, 16, 40, 64, 100, 128, 256])
def test_all_tiles_of_gpt2(B):
    for _ in range(5):  # a pipeline with a buffer too few is right now and then
        test_a_norm_and_a_product(torch.float16, False, B, 768, 2304)
        test_a_norm_and_a_product(torch.float16, True, B, 768, 3072)
        test_a_product_and_a_sum(torch.float16, None, B, 768, 768)
        test_a_product_and_a_sum(torch.float16, None, B, 3072, 768)


@pytest.mark.parametrize(
    ("dtype", "B", "C"), [(d, *n) for d, n in zip(ROUNDING, [(1, 33), (17, 100), (66, 96)], strict=True)]
)
def test_a_norm_reads_what_a_sum_has_left(dtype, B, C):
    """In several tiles, the last one shorter than the others."""
    linears, x, h = FusedLinears(DEVICE, dtype), numbers(B, C, dtype=dtype), numbers(B, 24, dtype=dtype, seed=1)
    stream = linears.linear_add(h, folded(None, None, *weights(24, C, dtype)[2:]), Stream(x, torch.empty(0), C))
    assert stream.stats.shape == (2, -(-C // stream.width), B)
    assert stream.stats.shape[1] > 1
    w = folded(*weights(C, 20, dtype))
    expected = normed(x) @ w.weight.double().T + w.bias.double()
    is_close(linears.norm_linear(stream, w, EPS), expected, expected.abs() + 8)


@by_dtype
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy's, inside the interpreter
def test_a_row_with_nan_touches_no_other(dtype):
    linears, w = FusedLinears(DEVICE, dtype), folded(*weights(40, 33, dtype))
    x = numbers(18, 40, dtype=dtype)
    clean = linears.norm_linear(stream_of(linears, x), w, EPS)
    x[3, 5], x[17, 0] = float("nan"), float("inf")
    out = linears.norm_linear(stream_of(linears, x), w, EPS)
    others = [b for b in range(18) if b not in (3, 17)]
    assert torch.equal(out[others], clean[others])
    assert out[[3, 17]].isnan().all()


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter runs one program after another")
@pytest.mark.parametrize(("dtype", "B", "K", "N"), [(d, *n) for d, n in zip(ROUNDING, IN_PARTS, strict=True)])
def test_the_same_call_gives_the_same_bits(dtype, B, K, N):
    linears, w = FusedLinears(DEVICE, dtype), folded(*weights(K, N, dtype))
    stream = stream_of(linears, numbers(B, K, dtype=dtype))
    first = linears.norm_linear(stream, w, EPS)
    for _ in range(20):
        assert torch.equal(linears.norm_linear(stream, w, EPS), first)


def test_rows_that_are_not_aligned_or_far_apart_are_copied():
    linears, w = FusedLinears(DEVICE, torch.float16), folded(None, None, *weights(64, 32, torch.float16)[2:])
    h = numbers(2, 64, dtype=torch.float16)
    moved = torch.zeros(2 * 64 + 1, device=DEVICE, dtype=torch.float16)[1:].view(2, 64).copy_(h)
    apart = torch.zeros(2, 192, device=DEVICE, dtype=torch.float16)[:, 64:128].copy_(h)
    assert moved.data_ptr() % 16
    xs = [numbers(2, 32, dtype=torch.float16) for _ in range(3)]
    for x, rows in zip(xs, (h, moved, apart), strict=True):
        linears.linear_add(rows, w, Stream(x, torch.empty(0), 32))
    assert torch.equal(xs[1], xs[0])
    assert torch.equal(xs[2], xs[0])


def test_what_the_kernels_do_not_take(guards):
    with pytest.raises(ConfigError, match=r"know no torch.float64: give float16"):
        FusedLinears(DEVICE, torch.float64)
    linears, x = FusedLinears(DEVICE, torch.float32), numbers(257, 8, dtype=torch.float32)
    with pytest.raises(ConfigError, match="257 rows for small products: give 1 to 256"):
        stream_of(linears, x)
    stream_of(linears, x[:256])
    linears.shared_memory = 1000
    with pytest.raises(ConfigError, match=r"no tile of a matrix of \[3, 8\] fits into 1000 bytes"):
        linears.norm_linear(Stream(x, x, 8), folded(*weights(8, 3, torch.float32)), EPS)
