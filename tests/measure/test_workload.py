"""Runs of a workload: the tokens and times of every request, siblings, mixed traffic; and the collector is spared."""

import gc

import numpy as np
import pytest

from rosecourse import ConfigError, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.decode.graphs import collector_at_rest
from rosecourse.engine.model_runner import ModelRunner
from rosecourse.lab.checking.whole_engine import attentive_gpt2
from rosecourse.measure.metrics import DEFINITIONS, per_request, queueing, throughput, tpot, ttft
from rosecourse.measure.traffic import D_SMALL, D
from rosecourse.measure.workload import Request, Workload, old_objects_spared, run_offline, run_scheduler, run_streaming
from rosecourse.request.session import SessionTimes

PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)
RUNNERS = pytest.mark.parametrize("run", [run_scheduler, run_offline, run_streaming])


@pytest.fixture
def engine(small_model):
    return InferenceEngine(small_model, EngineConfig(max_batch_size=2, block_size=4, prefix_cache=False))


@RUNNERS
@pytest.mark.parametrize("tokenize_workers", [0, 2])
def test_a_run_has_the_tokens_and_times_of_every_request(engine, run, tokenize_workers):
    prompts, frozen = tuple((n, 5, 7) for n in range(1, 6)), []

    def reserve(session):
        frozen.append(gc.get_freeze_count())
        return ModelRunner.reserve(engine.runner, session)

    engine.runner.reserve = reserve
    old = len(gc.get_objects())
    result = run(engine, Workload.of(prompts, PARAMS, tokenize_workers=tokenize_workers))
    assert min(frozen) > old / 2  # what was there before it is no work of the collector's
    assert gc.get_freeze_count() == 0
    assert result.completions == [g.token_ids for g in engine.generate(prompts, PARAMS)]
    assert result.num_tokens == 30
    for times in result.times:
        assert len(times.tokens) == 6
        assert result.start <= times.submitted <= times.admitted <= times.tokens[0]
        assert times.tokens == sorted(times.tokens)
    assert result.start + result.total_seconds == pytest.approx(max(t.tokens[-1] for t in result.times))
    assert 0 < result.stats.decode_seconds + result.stats.prefill_seconds <= result.total_seconds
    assert engine.kv.num_available() == engine.kv.num_blocks


@RUNNERS
def test_an_arrival_counts_from_when_it_was_scheduled(engine, run):
    result = run(engine, Workload.of(((1, 2),) * 4, PARAMS, interval=0.02))
    assert [t.submitted - result.start for t in result.times] == pytest.approx([0, 0.02, 0.04, 0.06])
    assert all(t.admitted >= t.submitted for t in result.times)


def test_a_sibling_begins_with_its_request_and_goes_on_alone(small_model):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=4, block_size=4, prefix_cache=False))
    longer = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    workload = Workload((Request((1, 2, 3), PARAMS, siblings=(longer,)), Request((5, 6), PARAMS)))
    run = run_scheduler(engine, workload)
    asked = (([1, 2, 3], PARAMS), ([1, 2, 3], longer), ([5, 6], PARAMS))
    assert run.completions == [engine.generate([prompt], params)[0].token_ids for prompt, params in asked]
    assert workload.prompts == [(1, 2, 3), (1, 2, 3), (5, 6)]
    assert run.times[1].tokens[0] == run.times[0].tokens[0]
    assert all(0 <= queueing(times) <= ttft(times) for times in run.times)
    engine.audit([])
    with pytest.raises(ConfigError, match="a stream has one sample"):
        run_streaming(engine, workload)


def test_what_a_request_or_run_lacks_has_no_figure():
    one_token = SessionTimes(submitted=1.0, admitted=1.0, tokens=[3.0])
    assert tpot(one_token) is None
    samples = per_request([[SessionTimes(10.0, 10.5, [11.0, 11.25, 12.0])], [one_token], [SessionTimes()]])
    assert samples["tpot"] == [0.5]
    assert samples["itl"] == [0.25, 0.75]
    assert samples["ttft"] == [1.0, 2.0]
    assert samples["delay"] == samples["reader_itl"] == []  # nobody streamed it
    assert {*DEFINITIONS} == {*samples, "throughput"}
    assert np.isnan(throughput(3, 0.0))


def test_the_collector_is_left_as_it_was():
    with pytest.raises(KeyError), old_objects_spared(), collector_at_rest():
        {}[gc.get_freeze_count(), gc.isenabled()]
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
    gc.freeze()
    gc.disable()
    try:
        with old_objects_spared(), collector_at_rest():
            pass
        assert gc.get_freeze_count()
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()


# -- mixed traffic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", [D_SMALL, D])
def test_mixed_traffic_is_of_all_lengths_with_some_forks(traffic):
    """The lengths are the same for every vocabulary, so that a pool is as dry with one model as with another."""
    requests, other = traffic.burst(4096).requests, traffic.burst(50257).requests
    news = [r.params.max_new_tokens for r in requests]
    lengths = [len(r.prompt) for r in requests]
    for values, (fewest, most) in ((lengths, (5, 200)), (news, traffic.new_tokens)):
        assert fewest <= min(values) < most / 4 < most / 2 < max(values) <= most
    assert len(requests) / 10 < sum(bool(r.siblings) for r in requests) <= len(requests) / 5
    assert [r.prompt for r in requests] != [r.prompt for r in other]
    assert [(len(r.prompt), r.params, r.siblings) for r in requests] == [
        (len(r.prompt), r.params, r.siblings) for r in other
    ]


def test_a_load_has_the_requests_of_the_burst_at_its_rate():
    burst, load = D.burst(4096), D.load(4096, rate=50.0)
    lengths = [len(r.prompt) for r in burst.requests]
    assert np.median(lengths) < 0.9 * np.mean(lengths)  # many short, few long
    starts = [r.prompt[:128] for r in burst.requests if len(r.prompt) > 128]
    assert len(set(starts)) < len(starts)  # some begin alike
    assert {r.arrival for r in burst.requests} == {0}
    assert (burst.prompts, burst.params) == (load.prompts, load.params)
    gaps = np.diff([r.arrival for r in load.requests])
    assert gaps.min() > 0
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=0.15)
    assert np.std(gaps) == pytest.approx(1 / 50, rel=0.3)  # of an exponential distribution, as large as the mean


def test_mixed_traffic_makes_the_pool_run_dry():
    """In a run that counts, too: the run before it has left its prefixes in the pool. Lengths alone decide it."""
    model = attentive_gpt2(layers=1, heads=1, head_dim=4, context=512)
    engine = InferenceEngine(model, D_SMALL.config)
    for _ in range(2):
        assert run_scheduler(engine, D_SMALL.burst(model.shape.vocab_size)).stats.preemptions > 0
        engine.audit([])


def test_a_few_objects_frozen_before_do_not_count(monkeypatch):
    old = len(gc.get_objects())
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    with old_objects_spared():
        assert len(gc.get_objects()) < old / 2
