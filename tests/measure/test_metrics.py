"""Each metric against a case computed by hand, and its definition against numpy."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rosecourse import ConfigError, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure import metrics
from rosecourse.measure.samples import Samples
from rosecourse.measure.workload import Request, Run, Workload, run_offline, run_scheduler, run_streaming
from rosecourse.request.session import SessionTimes

BY_HAND = SessionTimes(submitted=10.0, admitted=10.5, tokens=[11.0, 11.25, 12.0, 12.25])
ONE_TOKEN = SessionTimes(submitted=1.0, admitted=1.0, tokens=[3.0])


def test_by_hand():
    assert metrics.ttft(BY_HAND) == 1.0
    assert metrics.queueing(BY_HAND) == 0.5
    assert metrics.itl(BY_HAND) == [0.25, 0.75, 0.25]
    assert metrics.tpot(BY_HAND) == pytest.approx(1.25 / 3)
    assert metrics.latency(BY_HAND) == 2.25
    assert metrics.throughput(40, 8.0) == 5.0
    assert math.isnan(metrics.throughput(3, 0.0))


def test_a_request_of_one_token_has_no_tpot_and_no_itl():
    assert metrics.tpot(ONE_TOKEN) is None
    samples = metrics.per_request([[BY_HAND], [ONE_TOKEN]])
    assert samples["tpot"] == [metrics.tpot(BY_HAND)]
    assert samples["itl"] == [0.25, 0.75, 0.25]
    assert samples["ttft"] == [1.0, 2.0]


def test_a_reader_has_times_of_its_own():
    """Late by 0.5 s, 0.25 s, not at all, and 0.25 s again."""
    times = SessionTimes(BY_HAND.submitted, BY_HAND.admitted, BY_HAND.tokens, read=[11.5, 11.5, 12.0, 12.5])
    assert metrics.reader_itl(times) == [0.0, 0.5, 0.5]
    assert metrics.delay(times) == [0.5, 0.25, 0.0, 0.25]
    for metric in (metrics.itl, metrics.tpot, metrics.ttft, metrics.latency):  # the host's
        assert metric(times) == metric(BY_HAND)
    samples = metrics.per_request([[times], [ONE_TOKEN]])
    assert samples["reader_itl"] == metrics.reader_itl(times)
    assert samples["delay"] == metrics.delay(times)
    samples = Samples("before", [Run(0.0, 13.0, [BY_HAND, ONE_TOKEN], None, SchedulerStats())])
    assert metrics.reader_itl(BY_HAND) == metrics.delay(BY_HAND) == []  # nobody streamed it
    for metric in ("reader ITL", "delay"):
        assert math.isnan(samples.typical(metric, "p99"))


@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=50), st.floats(0, 5), st.floats(0, 5))
def test_definitions_hold_together(gaps, wait, prefill):
    tokens = np.cumsum([wait + prefill, *gaps]).tolist()
    times = SessionTimes(submitted=0.0, admitted=wait, tokens=tokens)
    assert metrics.latency(times) == pytest.approx(metrics.ttft(times) + sum(metrics.itl(times)))
    assert metrics.tpot(times) == pytest.approx(np.mean(metrics.itl(times)))
    assert metrics.tpot(times) == pytest.approx((metrics.latency(times) - metrics.ttft(times)) / (len(tokens) - 1))
    assert 0 <= metrics.queueing(times) <= metrics.ttft(times)


PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)


@pytest.mark.parametrize("run", [run_scheduler, run_offline, run_streaming])
@pytest.mark.parametrize("tokenize_workers", [0, 2])
def test_a_run_gives_the_tokens_and_times_of_every_request(small_model, run, tokenize_workers):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=2, prefix_cache=False))
    prompts = tuple((n, 5, 7) for n in range(1, 6))
    result = run(engine, Workload.of(prompts, PARAMS, tokenize_workers=tokenize_workers))
    assert result.completions == [g.token_ids for g in engine.generate(prompts, PARAMS)]
    assert result.num_tokens == 30
    assert [len(t.tokens) for t in result.times] == [6] * 5
    for times in result.times:
        assert result.start <= times.submitted <= times.admitted <= times.tokens[0]
        assert times.tokens == sorted(times.tokens)
    assert result.start + result.total_seconds == pytest.approx(max(t.tokens[-1] for t in result.times))
    assert 0 < result.stats.decode_seconds + result.stats.prefill_seconds <= result.total_seconds
    assert engine.kv.num_available() == engine.kv.num_blocks


@pytest.mark.parametrize("run", [run_scheduler, run_offline, run_streaming])
def test_an_arrival_counts_from_when_it_was_scheduled(small_model, run):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=2, prefix_cache=False))
    workload = Workload.of(((1, 2),) * 4, PARAMS, interval=0.02)
    result = run(engine, workload)
    assert [t.submitted - result.start for t in result.times] == pytest.approx([0, 0.02, 0.04, 0.06])
    assert all(t.admitted >= t.submitted for t in result.times)


# -- forks ---------------------------------------------------------------------------------------------------------


def test_a_sibling_has_its_first_token_with_its_request_and_goes_on_by_itself(small_model):
    engine = InferenceEngine(small_model, EngineConfig(max_batch_size=4, block_size=4, prefix_cache=False))
    longer = SamplingParams(max_new_tokens=9, stop_on_eos=False)
    family = Request((1, 2, 3), PARAMS, siblings=(longer,))
    workload = Workload((family, Request((5, 6), PARAMS)))
    run = run_scheduler(engine, workload)
    alone = [
        engine.generate([prompt], params)[0].token_ids
        for prompt, params in (([1, 2, 3], PARAMS), ([1, 2, 3], longer), ([5, 6], PARAMS))
    ]
    assert run.completions == alone
    assert workload.prompts == [(1, 2, 3), (1, 2, 3), (5, 6)]
    assert [len(times.tokens) for times in run.times] == [6, 9, 6]
    assert run.times[1].tokens[0] == run.times[0].tokens[0]
    assert all(0 <= metrics.queueing(times) <= metrics.ttft(times) for times in run.times)
    engine.audit([])
    with pytest.raises(ConfigError, match="a stream has one sample"):
        run_streaming(engine, workload)
