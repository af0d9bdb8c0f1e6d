"""Sampling: the right distribution, from draws that depend on the request's seed and the position alone."""

import pytest
import torch

from rosecourse import LogitsError, SamplingParams
from rosecourse.request.draws import draw
from rosecourse.request.sampling import choose, sample
from tests.support.hazards import RUNGS, Driver
from tests.support.oracles import prompts_of

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0, 2.5, 0.0])


def kept(logits, count):
    """Softmax over the `count` most probable tokens, zero elsewhere."""
    masked = torch.full_like(logits, float("-inf"))
    best = logits.topk(count).indices
    masked[best] = logits[best]
    return masked.softmax(0)


def fewest(top_p):
    """How many of the most probable tokens reach this probability together."""
    probabilities = LOGITS.softmax(0).sort(descending=True).values
    return next(n for n in range(1, 7) if float(probabilities[:n].sum()) >= top_p)


SHAPES = [
    (SamplingParams(temperature=0.7), (LOGITS / 0.7).softmax(0)),
    *((SamplingParams(temperature=1.0, top_k=k), kept(LOGITS, min(k, 6))) for k in (1, 2, 4, 100)),
    *((SamplingParams(temperature=1.0, top_p=p), kept(LOGITS, fewest(p))) for p in (0.01, 0.5, 0.7, 0.9, 0.999)),
]


@pytest.mark.parametrize(("params", "expected"), SHAPES, ids=[str(params) for params, _ in SHAPES])
def test_tokens_are_drawn_from_the_distribution_asked_for(params, expected):
    chosen = torch.tensor([choose(LOGITS, params, draw(params.seed, position)) for position in range(4000)])
    torch.testing.assert_close(chosen.bincount(minlength=6) / 4000, expected, atol=0.025, rtol=0)


def test_top_p_of_one_keeps_every_token_of_a_large_vocabulary():
    """Float32 sums of 50,000 probabilities pass 1 before the end: the last tokens must still be there."""
    logits = torch.randn(50_257, generator=torch.Generator().manual_seed(0)) * 3
    chosen = choose(logits, SamplingParams(temperature=1.0), 1.0 - 2**-32)  # the largest draw
    assert int((logits > logits[chosen]).sum()) > 50_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bad", "place"), [(float("nan"), 3), (float("inf"), 0), (float("nan"), slice(None))], ids=str)
def test_no_token_is_chosen_from_nan(dtype, bad, place):
    """One logit of a row is enough; the others of the batch draw what they would have drawn without it."""
    logits = torch.stack([LOGITS] * 4).to(dtype)
    logits[1, place] = logits[3, place] = bad
    params = [SamplingParams(temperature=t, seed=3) for t in (1.0, 1.0, 0.0, 0.0)]
    with pytest.raises(LogitsError, match=r"sessions \[1, 3\] of the batch are NaN or infinite") as caught:
        sample(logits, params, [4, 5, 6, 7])
    assert caught.value.rows == [1, 3]
    well = [0, 2]
    expected = choose(LOGITS.to(dtype), params[0], draw(3, 4))
    assert sample(logits[well], [params[b] for b in well], [4, 6]) == [expected, 1]


@pytest.mark.parametrize("rung", RUNGS)
def test_no_rung_takes_a_token_from_nan(small_model, rung):
    """The call changes nothing, and goes on with the right logits."""
    driver = Driver(small_model, rung)
    sessions = driver.start_lengths(3, 4, 5)
    logits = driver.engine.decode_step_sessions(sessions)
    bad = logits.clone()
    bad[1, 7] = torch.nan
    with pytest.raises(LogitsError) as caught:
        driver.engine.take_tokens(sessions, bad)
    assert caught.value.rows == [1]
    driver.engine.take_tokens(sessions, logits)
    assert [session.token_ids[-1] for session in sessions] == logits.argmax(1).tolist()


def test_tiny_temperature_is_greedy_among_what_is_not_ruled_out():
    params = SamplingParams(temperature=1e-36)
    assert [choose(LOGITS * 1e4, params, draw(0, position)) for position in range(20)] == [1] * 20
    masked = LOGITS.clone()
    masked[[1, 4]] = float("-inf")
    params = [SamplingParams(temperature=t) for t in (0.0, 1e-30)]
    assert sample(torch.stack([masked] * 2), params, [0, 0]) == [2, 2]


SAMPLED = [
    SamplingParams(max_new_tokens=24, temperature=t, top_k=k, top_p=p, seed=seed, stop_on_eos=False)
    for t, k, p, seed in ((1.0, 0, 0.9, 1), (0.0, 0, 1.0, 2), (0.7, 40, 1.0, 2), (2.0, 0, 1.0, 2**40), (1.0, 5, 0.5, 1))
]


@pytest.fixture(scope="module")
def sampled_tokens(small_model):
    """What the first rung gives to each prompt alone."""
    prompts, engine = prompts_of([5, 11, 7, 3, 9], 211), Driver(small_model, "035").engine
    return prompts, [
        engine.generate([each], params)[0].token_ids for each, params in zip(prompts, SAMPLED, strict=True)
    ]


@pytest.mark.parametrize("rung", RUNGS)
def test_every_rung_samples_the_same_tokens(small_model, sampled_tokens, rung):
    """Hazard 8: together, in another order, and from a pool so small that requests are preempted and computed again."""
    prompts, expected = sampled_tokens
    driver, order = Driver(small_model, rung, max_batch_size=4, num_blocks=14, prefix_cache=True), [3, 0, 4, 2, 1]
    results = driver.engine.generate([prompts[n] for n in order], [SAMPLED[n] for n in order])
    assert [result.token_ids for result in results] == [expected[n] for n in order]
