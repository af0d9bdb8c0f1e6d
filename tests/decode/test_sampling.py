"""Sampling on the device: the tokens that `request.sampling` chooses, row by row, from the same draws."""

import random
from types import SimpleNamespace

import pytest
import torch

from rosecourse import SamplingParams
from rosecourse.decode.sampling import NO_TOKEN, next_tokens, sampling_metadata
from rosecourse.request.sampling import sample

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float16]
TEMPERATURES = [0.0, 1e-300, 1e-36, 1e-3, 0.3, 0.7, 1.0, 1.0, 1.5, 100.0]
TOP_K = [0, 0, 0, 1, 2, 3, 50, 2**40, 2**70]
TOP_P = [1.0, 1.0, 1e-300, 1e-9, 0.1, 0.5, 0.9, 0.999999, 1 - 2**-53]
INF, NAN = float("inf"), float("nan")


def rows_of_logits(rng, n, vocab_size, dtype):
    """Rows of every kind: flat and peaked ones, with ties, all equal, and with tokens that are ruled out."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    logits = torch.randn(n, vocab_size, generator=generator) * torch.tensor([[rng.choice([0.1, 1, 5, 40])]] * n)
    for row in logits:
        kind = rng.choice(["as it is", "as it is", "ties", "equal", "ruled out", "one left", "shifted"])
        if kind == "ties":
            row.round_()
        elif kind == "equal":
            row.fill_(rng.uniform(-9, 9))
        elif kind in ("ruled out", "one left"):
            stays = rng.randrange(vocab_size)
            ruled_out = torch.rand(vocab_size, generator=generator) < (0.7 if kind == "ruled out" else 2.0)
            ruled_out[stays] = False
            row[ruled_out] = -INF
        elif kind == "shifted":
            row.add_(rng.choice([-1e4, 1e4]))
    return logits.to(dtype)


def some_params(rng, greedy):
    return SamplingParams(
        temperature=0.0 if greedy else rng.choice(TEMPERATURES),
        top_k=rng.choice(TOP_K),
        top_p=rng.choice(TOP_P),
        seed=rng.choice([rng.randrange(2**16), rng.randrange(2**32), rng.randrange(2**70)]),
    )


def chosen(logits, params, positions):
    """As a step chooses for sessions that have no rows."""
    sessions = [SimpleNamespace(params=p, num_cached_tokens=n) for p, n in zip(params, positions, strict=True)]
    return next_tokens(logits, sampling_metadata(sessions, CPU)).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 2, 7, 211, 3000])
def test_a_batch_chooses_what_its_requests_choose(dtype, vocab_size):
    """Hundreds of rows; where a draw falls on an edge of the cumulative distribution, rounding may decide."""
    rng, differ = random.Random(f"{dtype} {vocab_size}"), []
    for batch, n in enumerate([1, 2, 17, 64, 128] * 4):
        logits = rows_of_logits(rng, n, vocab_size, dtype)
        params = [some_params(rng, greedy=batch % 4 == 0 or rng.random() < 0.1) for _ in range(n)]
        positions = [rng.randrange(1, 1 << 20) for _ in range(n)]
        expected, was = sample(logits, params, positions), logits.clone()
        found = chosen(logits, params, positions)
        assert torch.equal(logits, was), "the logits have changed"
        differ += [params[b] for b in range(n) if found[b] != expected[b]]
    assert len(differ) <= 2
    assert all(each.temperature for each in differ)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-300])
@pytest.mark.parametrize("mixed", [False, True])
def test_there_is_no_token_in_nan_infinity_or_nothing(dtype, temperature, mixed):
    well = torch.tensor([1.0, 3.0, -INF, 2.0])
    ill = [[NAN, 1, 2, 3], [0, 1, 2, NAN], [INF, 0, 0, 0], [0, 1, INF, -INF], [NAN, INF, 0, 0], [NAN] * 4, [-INF] * 4]
    logits = torch.stack([well, *map(torch.tensor, ill), well]).to(dtype)
    params = [SamplingParams(temperature=temperature, seed=b) for b in range(len(logits))]
    if mixed:
        params[0] = params[3] = SamplingParams(temperature=1.0 - bool(temperature))
    positions = [7] * len(logits)
    found = chosen(logits, params, positions)
    assert found[1:-1] == [NO_TOKEN] * len(ill)
    assert [found[0], found[-1]] == sample(logits[[0, -1]], [params[0], params[-1]], [7, 7])
    assert all(0 <= token_id < 4 and token_id != 2 for token_id in (found[0], found[-1]))


def test_a_vocabulary_is_sorted_only_where_somebody_asks_for_it(monkeypatch):
    sorts, sort = [], torch.sort
    monkeypatch.setattr(torch, "sort", lambda *args, **kwargs: (sorts.append(1), sort(*args, **kwargs))[1])
    monkeypatch.setattr(torch.Tensor, "sort", lambda *args, **kwargs: pytest.fail("sorted"))
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    greedy, sampled = SamplingParams(top_k=3, top_p=0.5), SamplingParams(temperature=1.0)
    assert chosen(logits, [greedy] * 4, [1] * 4) == logits.argmax(-1).tolist()
    assert sorts == []
    assert chosen(logits, [greedy, sampled, greedy, sampled], [1] * 4)[::2] == logits.argmax(-1)[::2].tolist()
    assert sorts == [1]
