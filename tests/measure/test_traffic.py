"""Mixed traffic: what its requests are like, and what may be said of two engines under it."""

import numpy as np
import pytest

from rosecourse import InferenceEngine
from rosecourse.lab.checking.whole_engine import attentive_gpt2
from rosecourse.measure.traffic import D_SMALL, D
from rosecourse.measure.workload import run_scheduler


def test_requests_are_mixed_as_the_workload_says():
    requests = D.burst(4096).requests
    prompts, news = [len(r.prompt) for r in requests], [r.params.max_new_tokens for r in requests]
    assert 5 <= min(prompts) < 15
    assert 150 < max(prompts) <= 200
    assert 16 <= min(news) < 40
    assert 200 < max(news) <= 256
    assert np.median(prompts) < 0.9 * np.mean(prompts)  # many short, few long
    starts = [r.prompt[:128] for r in requests if len(r.prompt) > 128]
    assert len(set(starts)) < len(starts)  # some begin alike
    assert len(requests) / 10 < sum(bool(r.siblings) for r in requests) < len(requests) / 6
    assert not any(r.params.stop_on_eos for r in requests)
    requests = D_SMALL.burst(4096).requests
    assert max(len(r.prompt) for r in requests) > 4 * min(len(r.prompt) for r in requests)
    assert max(r.params.max_new_tokens for r in requests) > 4 * min(r.params.max_new_tokens for r in requests)
    assert 0 < sum(bool(r.siblings) for r in requests) < len(requests)


def test_the_lengths_are_the_same_for_every_vocabulary():
    """So that a pool is as dry with one model as with another."""
    one, other = D.burst(4096).requests, D.burst(50257).requests
    assert [r.prompt for r in one] != [r.prompt for r in other]
    assert [(len(r.prompt), r.params, r.siblings) for r in one] == [
        (len(r.prompt), r.params, r.siblings) for r in other
    ]


def test_the_load_has_the_requests_of_the_burst_at_the_rate_asked_for():
    burst, load = D.burst(4096), D.load(4096, rate=50.0)
    assert {r.arrival for r in burst.requests} == {0}
    assert [(r.prompt, r.params, r.siblings) for r in burst.requests] == [
        (r.prompt, r.params, r.siblings) for r in load.requests
    ]
    gaps = np.diff([r.arrival for r in load.requests])
    assert gaps.min() > 0
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.15)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.3)  # of an exponential distribution, as large as the mean
    assert D.load(4096, rate=50.0) == load


@pytest.mark.parametrize("traffic", [D_SMALL, D])
def test_the_pool_runs_dry_at_times(traffic):
    """In a run that counts, too: the run before it has left its prefixes in the pool. Lengths alone decide it."""
    model = attentive_gpt2(layers=1, heads=1, head_dim=4, context=512)
    engine = InferenceEngine(model, traffic.config)
    for _ in range(2):
        run = run_scheduler(engine, traffic.burst(model.shape.vocab_size))
        assert run.stats.preemptions > 0
        engine.audit([])
