"""Small matrix products with what surrounds them, against plain torch in float64, at sizes around the tiles' edges."""

import pytest
import torch
import torch.nn.functional as F

from rosecourse.decode.sampling import NO_TOKEN, argmax
from rosecourse.kernels.fused import Folded, FusedLinears, Head, Stream, folded
from tests.kernels.harness import DEVICE, EPS, INTERPRETED, MARKS, ROUNDING, pairwise
from tests.kernels.products import Guards, guarded, is_close, normed, numbers, product, stats_of, stream_of, weights

pytestmark = [
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered"),  # numpy's, inside the interpreter
    *MARKS,
]
DTYPES = [*ROUNDING]
# Rows, inputs, outputs. The last three have too few tiles: the inputs are split.
SIZES = [(1, 8, 1), (2, 33, 31), (16, 64, 32), (17, 65, 33), (65, 128, 40), (130, 40, 70)]
IN_PARTS = [(1, 512, 16), (5, 1025, 33), (70, 700, 40)]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def guards(monkeypatch):
    """Nothing writes past the end of what it was given."""
    made = Guards(monkeypatch)
    yield made
    made.check()


def with_guards(w: Folded) -> Folded:
    return Folded(*map(guarded, w[:3]), *w[3:])


# -- embedding, norm, product, sum ----------------------------------------------------------------------------------


@pairwise(dtype=DTYPES, size=[(1, 1), (3, 7), (16, 64), (33, 100), (2, 768)])
def test_the_embedding_and_what_is_known_of_its_rows(dtype, size):
    B, C = size
    wte, wpe = numbers(50, C, dtype=dtype, shift=40.0), numbers(9, C, dtype=dtype, seed=1)
    token_ids, positions = torch.arange(B, device=DEVICE) * 7 % 50, torch.arange(B, device=DEVICE) * 5 % 9
    stream = FusedLinears(DEVICE, dtype).embed(token_ids, positions, wte, wpe)
    is_close(stream.x, wte[token_ids].double() + wpe[positions].double(), 0.0)
    torch.testing.assert_close(stream.stats.double(), stats_of(stream.x, C), atol=1e-5, rtol=1e-5)


def test_an_embedding_of_more_than_2_to_the_31_numbers():
    """Memory that is not used is not touched."""
    C = 1024
    wte = torch.empty(2**31 // C + 2, C, dtype=torch.float16, device=DEVICE)
    wte[-1] = numbers(C, dtype=torch.float16)
    last, wpe = torch.tensor([len(wte) - 1], device=DEVICE), numbers(2, C, dtype=torch.float16)
    stream = FusedLinears(DEVICE, torch.float16).embed(last, torch.ones_like(last), wte, wpe)
    assert torch.equal(stream.x, (wte[-1] + wpe[1])[None])


@pairwise(dtype=DTYPES, gelu=[False, True], size=SIZES + IN_PARTS)
def test_a_norm_and_a_product(dtype, gelu, size):
    B, K, N = size
    linears, x = FusedLinears(DEVICE, dtype), numbers(B, K, dtype=dtype, shift=0.5)
    w = with_guards(folded(*weights(K, N, dtype)))
    out = linears.norm_linear(stream_of(linears, x), w, EPS, gelu)
    expected, summed = product(normed(x), w)
    # The mean is taken off after the product.
    centre = x.double().mean(1).abs() / (x.double().var(1, unbiased=False) + EPS).sqrt()
    summed = summed + centre[:, None] * w.weight.double().abs().sum(1)
    is_close(out, F.gelu(expected, approximate="tanh") if gelu else expected, summed)
    assert not linears.counters.any()


@pairwise(dtype=DTYPES, size=SIZES + IN_PARTS)
def test_a_product_and_a_sum(dtype, size):
    """What the next norm reads, too: in several tiles, the last one shorter than the others."""
    B, K, N = size
    linears, x, h = FusedLinears(DEVICE, dtype), numbers(B, N, dtype=dtype), numbers(B, K, dtype=dtype, seed=1)
    w = with_guards(folded(None, None, *weights(K, N, dtype)[2:]))
    expected, summed = product(h, w)
    expected, summed = expected + x.double(), summed + x.double().abs()
    stream = linears.linear_add(h, w, Stream(x, torch.empty(0), N))
    assert stream.x is x
    is_close(x, expected, summed)
    assert stream.stats.shape == (2, -(-N // stream.width), B)
    torch.testing.assert_close(stream.stats.double(), stats_of(x, stream.width), atol=1e-4, rtol=1e-5)
    if N > 1:
        after = folded(*weights(N, 20, dtype))
        expected, _ = product(normed(x), after)
        is_close(linears.norm_linear(stream, after, EPS), expected, expected.abs() + 8)
    assert not linears.counters.any()


@pytest.mark.parametrize(("dtype", "rms", "gated"), [("float32", False, False), ("float16", True, True)])
def test_a_program_that_makes_several_tiles_makes_the_same_ones(dtype, rms, gated):
    """Of which the last is shorter, and not every program has as many."""
    dtype = getattr(torch, dtype)
    gain, shift, weight, bias = weights(100, 330, dtype)
    w = with_guards(folded(gain, None if rms else shift, weight, bias, rms, gated))
    linears, x = FusedLinears(DEVICE, dtype), numbers(70, 100, dtype=dtype)
    stream, found = stream_of(linears, x), []
    for linears.processors in (1, 100):
        head = linears.logits(stream, w, EPS)
        found.append((linears.norm_linear(stream, w, EPS, gelu=not gated), *head))
    for few, many in zip(*found, strict=True):
        assert torch.equal(few, many)


@pytest.mark.skipif(INTERPRETED, reason="takes minutes through the interpreter")
@pytest.mark.parametrize("B", [1, 16, 40, 64, 100, 128, 256])
def test_all_tiles_of_gpt2(B):
    for _ in range(5):  # a pipeline with a buffer too few is right now and then
        test_a_norm_and_a_product(torch.float16, False, (B, 768, 2304))
        test_a_norm_and_a_product(torch.float16, True, (B, 768, 3072))
        test_a_product_and_a_sum(torch.float16, (B, 768, 768))
        test_a_product_and_a_sum(torch.float16, (B, 3072, 768))
        test_logits_and_their_best(torch.float16, (B, 768, 50257))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_with_nan_touches_no_other(dtype):
    linears, w = FusedLinears(DEVICE, dtype), folded(*weights(40, 33, dtype))
    x = numbers(18, 40, dtype=dtype)
    clean = linears.norm_linear(stream_of(linears, x), w, EPS)
    x[3, 5], x[17, 0] = NAN, INF
    out = linears.norm_linear(stream_of(linears, x), w, EPS)
    others = [b for b in range(18) if b not in (3, 17)]
    assert torch.equal(out[others], clean[others])
    assert out[[3, 17]].isnan().all()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter runs one program after another")
@pairwise(dtype=DTYPES, size=IN_PARTS)
def test_the_same_call_gives_the_same_bits(dtype, size):
    B, K, N = size
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


# -- the logits with the best token of each tile of the vocabulary, and the choice among those ----------------------


def chosen(linears: FusedLinears, head: Head, live: list[int] | None = None) -> tuple[list[int], ...]:
    """What `choose` returns, and what it leaves in the rows: tokens, token ids, lengths."""
    B = len(head.logits)
    token_ids, lens = torch.full((B,), 7, device=DEVICE), torch.arange(B, device=DEVICE)
    live_rows = torch.ones_like(lens) if live is None else torch.tensor(live, device=DEVICE)
    tokens = linears.choose(head, live_rows, token_ids, lens)
    return tokens.tolist(), token_ids.tolist(), lens.tolist()


@pairwise(dtype=DTYPES, size=[(1, 8, 1), (5, 33, 31), (16, 64, 32), (17, 40, 101), (70, 100, 257)])
def test_logits_and_their_best(dtype, size):
    B, C, V = size
    linears, x = FusedLinears(DEVICE, dtype), numbers(B, C, dtype=dtype)
    gain, shift, weight, _ = weights(C, V, dtype)
    w = with_guards(folded(gain, shift, weight, None))
    head = linears.logits(stream_of(linears, x), w, EPS)
    assert head.logits.shape == (B, V)
    expected, summed = product(normed(x), w)
    is_close(head.logits, expected, summed + 8)
    best = argmax(head.logits).tolist()
    assert chosen(linears, head) == (best, best, list(range(1, B + 1)))


def logits_of(bias: torch.Tensor, B: int = 2, dtype: torch.dtype = torch.float32) -> tuple[FusedLinears, Head]:
    """Logits that are a bias [V], for each row."""
    bias, linears = bias.to(DEVICE), FusedLinears(DEVICE, dtype)
    w = Folded(torch.zeros(len(bias), 16, device=DEVICE, dtype=dtype), bias, torch.zeros_like(bias))
    return linears, linears.logits(stream_of(linears, numbers(B, 16, dtype=dtype)), w, EPS)


@pytest.mark.parametrize("V", [1, 31, 33, 97])
def test_every_token_can_win_and_none_beyond_the_last(V):
    """All of them are below zero."""
    places = sorted({0, 1, 30, 31, 32, 33, 63, 64, 95, 96, V - 2, V - 1} & set(range(V)))
    bias = torch.full((len(places), V), -3.0)
    bias[range(len(places)), places] = -1.0
    assert [chosen(*logits_of(row))[0] for row in bias] == [[place] * 2 for place in places]


def test_equals_and_rows_without_a_best():
    for bad, place in ((NAN, 40), (INF, 66), (NAN, 0)):
        bias = torch.zeros(70)
        bias[place] = bad
        assert chosen(*logits_of(bias))[:2] == ([NO_TOKEN] * 2, [0, 0])
    bias = torch.full((70,), -INF)
    assert chosen(*logits_of(bias))[0] == [NO_TOKEN] * 2
    bias[[69, 50, 33]] = 1.0
    assert chosen(*logits_of(bias)) == ([33, 33], [33, 33], [1, 2])


def test_a_logit_beyond_float16_is_none_to_choose_by():
    """It is the rounded logits that are judged, as `argmax` judges them."""
    assert chosen(*logits_of(torch.tensor([1.0, 70000.0, 2.0]), dtype=torch.float16))[0] == [NO_TOKEN] * 2


def test_rows_without_a_session_stay_as_long_as_they_are():
    assert chosen(*logits_of(torch.arange(40.0), B=3), live=[1, 0, 1]) == ([39] * 3, [39] * 3, [1, 1, 3])
