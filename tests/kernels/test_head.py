"""The logits with the best token of each tile of the vocabulary, and the choice among those."""

import pytest
import torch

from rosecourse.decode.sampling import NO_TOKEN, argmax
from rosecourse.kernels.fused import Folded, FusedLinears, Head, folded
from tests.kernels.attention_cases import let_overflow_raise
from tests.kernels.small_products import (
    DEVICE,
    EPS,
    ROUNDING,
    Guards,
    is_close,
    normed,
    numbers,
    stream_of,
    weights,
    with_guards,
)

pytestmark = [pytest.mark.gpu] if DEVICE.type == "cuda" else []
by_dtype = pytest.mark.parametrize("dtype", ROUNDING, ids=lambda x: str(x).removeprefix("torch."))


@pytest.fixture(autouse=True)
def guards(monkeypatch):
    """Nothing writes past the end of what it was given."""
    let_overflow_raise(monkeypatch)
    made = Guards(monkeypatch)
    yield made
    made.check()


def chosen(linears: FusedLinears, head: Head, live: list[int] | None = None) -> tuple[list[int], ...]:
    """What `choose` returns, and what it leaves in the rows: tokens, token ids, lengths."""
    B = len(head.logits)
    token_ids, lens = torch.full((B,), 7, device=DEVICE), torch.arange(B, device=DEVICE)
    live_rows = torch.ones_like(lens) if live is None else torch.tensor(live, device=DEVICE)
    tokens = linears.choose(head, live_rows, token_ids, lens)
    return tokens.tolist(), token_ids.tolist(), lens.tolist()


@by_dtype
@pytest.mark.parametrize(("B", "C", "V"), [(1, 8, 1), (5, 33, 31), (16, 64, 32), (17, 40, 101), (70, 100, 257)])
def test_logits_and_their_best(dtype, B, C, V):
    linears, x = FusedLinears(DEVICE, dtype), numbers(B, C, dtype=dtype)
    gain, shift, weight, _ = weights(C, V, dtype)
    w = with_guards(folded(gain, shift, weight, None))
    head = linears.logits(stream_of(linears, x), w, EPS)
    assert head.logits.shape == (B, V)
    expected = normed(x) @ w.weight.double().T + w.bias.double()
    is_close(head.logits, expected, normed(x).abs() @ w.weight.double().abs().T + w.bias.double().abs() + 8)
    best = argmax(head.logits).tolist()
    assert chosen(linears, head) == (best, best, list(range(1, B + 1)))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="takes minutes through the interpreter")
@pytest.mark.parametrize("B", [1, 16, 64, 100, 256])
def test_the_logits_of_gpt2(B):
    for _ in range(5):  # a pipeline with a buffer too few is right now and then
        test_logits_and_their_best(torch.float16, B, 768, 50257)


def logits_of(bias: torch.Tensor, B: int = 2) -> tuple[FusedLinears, Head]:
    """Logits that are a bias [V], for each row."""
    V, dtype = len(bias), torch.float32
    w = Folded(torch.zeros(V, 16, device=DEVICE), bias.to(DEVICE), torch.zeros(V, device=DEVICE))
    linears = FusedLinears(DEVICE, dtype)
    return linears, linears.logits(stream_of(linears, numbers(B, 16, dtype=dtype)), w, EPS)


def missed(V: int, places: list[int]) -> list[int]:
    """Tokens that are not chosen where they are the best of V, all of them below zero."""
    found = []
    for place in places:
        bias = torch.full((V,), -3.0)
        bias[place] = -1.0
        if chosen(*logits_of(bias))[0] != [place] * 2:
            found.append(place)
    return found


@pytest.mark.parametrize("V", [1, 31, 33, 97])
def test_every_token_can_win_and_none_beyond_the_last(V):
    edges = {0, 1, 30, 31, 32, 33, 63, 64, 95, 96, V - 2, V - 1}
    assert missed(V, sorted(place for place in edges if 0 <= place < V)) == []


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy's, inside the interpreter
def test_equals_and_rows_without_a_best():
    nan, inf = float("nan"), float("inf")
    for bad, place in ((nan, 40), (inf, 66), (nan, 0)):
        bias = torch.zeros(70)
        bias[place] = bad
        tokens, token_ids, _ = chosen(*logits_of(bias))
        assert (tokens, token_ids) == ([NO_TOKEN] * 2, [0, 0])
    assert chosen(*logits_of(torch.full((70,), -inf)))[0] == [NO_TOKEN] * 2
    bias = torch.full((70,), -inf)
    bias[[69, 50, 33]] = 1.0
    assert chosen(*logits_of(bias)) == ([33, 33], [33, 33], [1, 2])


@pytest.mark.filterwarnings("ignore:overflow encountered")  # numpy's, inside the interpreter
def test_a_logit_beyond_float16_is_none_to_choose_by():
    """It is the rounded logits that are judged, as `argmax` judges them."""
    linears, x = FusedLinears(DEVICE, torch.float16), numbers(2, 16, dtype=torch.float16)
    bias = torch.tensor([1.0, 70000.0, 2.0], device=DEVICE)
    head = linears.logits(
        stream_of(linears, x), Folded(torch.zeros(3, 16, device=DEVICE).half(), bias, torch.zeros_like(bias)), EPS
    )
    assert chosen(linears, head)[0] == argmax(head.logits).tolist() == [NO_TOKEN] * 2


def test_rows_without_a_session_stay_as_long_as_they_are():
    assert chosen(*logits_of(torch.arange(40.0), B=3), live=[1, 0, 1]) == ([39] * 3, [39] * 3, [1, 1, 3])
