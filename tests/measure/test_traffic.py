"""Mixed traffic: what its requests are like, and what may be said of two engines under it."""

import numpy as np
import pytest

from rosecourse import LESSONS, EngineConfig, InferenceEngine
from rosecourse.lab.world.tiny_gpt2 import random_gpt2
from rosecourse.measure.metrics import Limits
from rosecourse.measure.traffic import (
    D_SMALL,
    LOAD,
    D,
    MixedTraffic,
    TrafficComparison,
    compare_traffic,
    load_rate,
)
from rosecourse.measure.workload import run_scheduler


class WithinReach(TrafficComparison):
    limits = Limits(ttft=1e3, gap=1e3)


class OutOfReach(TrafficComparison):
    limits = Limits(ttft=0.0, gap=0.0)


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


def test_the_lengths_are_the_same_for_every_vocabulary():
    """So that a pool is as dry with one model as with another."""
    one, other = D.burst(4096).requests, D.burst(50257).requests
    assert [r.prompt for r in one] != [r.prompt for r in other]
    assert [(len(r.prompt), r.params, r.siblings) for r in one] == [
        (len(r.prompt), r.params, r.siblings) for r in other
    ]


def test_the_small_form_has_a_bit_of_everything():
    requests = D_SMALL.burst(4096).requests
    assert max(len(r.prompt) for r in requests) > 4 * min(len(r.prompt) for r in requests)
    assert max(r.params.max_new_tokens for r in requests) > 4 * min(r.params.max_new_tokens for r in requests)
    assert 0 < sum(bool(r.siblings) for r in requests) < len(requests)


def test_the_load_has_the_requests_of_the_burst_at_the_rate_asked_for():
    burst, load = D.burst(4096), D.load(4096, rate=50.0)
    assert burst.all_at_once
    assert not load.all_at_once
    assert [(r.prompt, r.params, r.siblings) for r in burst.requests] == [
        (r.prompt, r.params, r.siblings) for r in load.requests
    ]
    gaps = np.diff([r.arrival for r in load.requests])
    assert gaps.min() > 0
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.15)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.3)  # of an exponential distribution, as large as the mean
    assert D.load(4096, rate=50.0) == load
    assert load_rate([2.0, 4.0, 8.0], D) == LOAD * D.num_requests / 4


@pytest.mark.parametrize("traffic", [D_SMALL, D])
def test_the_pool_runs_dry_at_times(traffic):
    """In a run that counts, too: the run before it has left its prefixes in the pool. Lengths alone decide it."""
    model = random_gpt2(layers=1, heads=1, head_dim=4, context=512)
    engine = InferenceEngine(model, traffic.config)
    for _ in range(2):
        run = run_scheduler(engine, traffic.burst(model.shape.vocab_size))
        assert run.stats.preemptions > 0
        engine.audit([])


def test_two_engines_are_compared_all_at_once_and_under_load(model):
    traffic = MixedTraffic(num_requests=6, max_batch_size=4, num_blocks=40)
    engines = LESSONS[-2].engines(model, traffic.config)
    found = compare_traffic(*engines, traffic, pairs=1)
    requests = len(found.load.after.runs[0].times)
    assert requests > traffic.num_requests  # a fork is a request of its own
    assert found.rate == pytest.approx(load_rate(found.burst.before.seconds, traffic) * requests / 6)
    assert found.burst.before.runs[0].completions == found.load.after.runs[0].completions
    assert list(found.table().index) == [
        "burst: throughput (tokens/s)",
        "load: goodput (requests/s)",
        "load: ITL p99 (ms)",
    ]
    first, load, good, *_, preempted = found.sentences("060")
    assert first.startswith("Mixed traffic, all at once: 060: too few pairs to tell")
    assert load.startswith(f"At {found.rate:.1f} requests/s, 80% of the capacity before: ITL p99 too few pairs")
    assert good.startswith(f"A request is good if it keeps to {found.limits}: in the median run ")
    assert "1 warm-up and 1 counted runs" in preempted
    gap = found.burst.before.typical("ITL", "p50") / 1e3
    assert (found.limits.ttft, found.limits.gap) == (5 * gap, 3 * gap)
    require_reasons(found)


def require_reasons(found):
    """Where next to no request is good, it says why, and what to look at instead."""
    assert len(WithinReach(found.burst, found.load).shares_said()) == 1
    _, why, *instead = OutOfReach(found.burst, found.load).shares_said()
    assert f"prefills have not: before, one takes {found.prefill_ms:.1f} ms" in why
    run = found.load.before.runs[0]
    assert found.prefill_ms >= 1e3 * run.stats.prefill_seconds / len(run.times)
    assert instead == [found.load.effect(*one) for one in (("TTFT", "p50"), ("ITL", "p50"), ("ITL", "p99"))]


def test_the_engines_of_the_traffic_have_its_pool():
    assert D_SMALL.config == EngineConfig(
        block_size=16, max_batch_size=16, num_blocks=52, max_seq_len=328, prefix_cache=True
    )
