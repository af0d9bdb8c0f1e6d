"""Comparing: the order of the runs, the figures of a side, the ratio, its interval and its control."""

from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rosecourse import BEST, LESSONS, ConfigError, EngineConfig, InferenceEngine, RosecourseError, SamplingParams
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure import compare as module
from rosecourse.measure.compare import HEADLINES, Comparison, Conditions, compare, compare_ladder
from rosecourse.measure.metrics import UNITS
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import interleave_all, median_interval, ratio
from rosecourse.measure.workload import Run, Workload, run_scheduler
from rosecourse.request.session import SessionTimes

PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)
WORKLOAD = Workload.of(((1, 2, 3), (4, 5)), PARAMS)
CONDITIONS = Conditions(2, 8, 3, 4, 5, "tiny", "float32", "a CPU (1 thread)", "2.13")


def test_several_are_interleaved_in_alternating_order():
    order = []
    works = [lambda name=name: order.append(name) or len(order) for name in "ABC"]
    samples = interleave_all(works, rounds=2)
    assert "".join(order) == "ABCCBAABC"
    assert samples == [[6, 7], [5, 8], [4, 9]]


def test_an_interval_covers_a_ratio_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        noise = rng.lognormal(0, 0.1, size=(2, 15))
        found = ratio(1.5 * noise[0], noise[1])
        covered += found.low <= 1.5 <= found.high
        assert found.low <= found.value <= found.high
    assert 0.88 <= covered / 100 <= 1.0
    found = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.value, found.low, found.high) == (3.0, 1.0, 5.0)


# -- figures by hand ------------------------------------------------------------------------------------------------


def run_of(*requests, seconds=None):
    """A run whose requests got their tokens at these times, in seconds from its start."""
    times = [SessionTimes(0.0, 0.0, list(moments)) for moments in requests]
    total = seconds or max(max(moments) for moments in requests)
    return Run(0.0, total, times, None, SchedulerStats(decode_seconds=total / 2))


def comparison(before, after, control=()):
    """Of runs of four tokens that take so many seconds."""
    sides = [[run_of([1, 2, 3, 4], seconds=one) for one in seconds] for seconds in (before, after, control)]
    return Comparison(
        Samples("before", sides[0]), Samples("after", sides[1]), CONDITIONS, control=Samples("control", sides[2])
    )


def test_each_metric_in_its_unit_is_as_by_hand():
    """Two requests, of which the second waits 0.1 s; 1 s in all, half of it in decode steps."""
    times = [
        SessionTimes(0.0, 0.0, [0.2, 0.3, 0.5], [0.3, 0.3, 0.6]),
        SessionTimes(0.0, 0.1, [0.5, 0.7, 1.0], [0.6, 0.8, 1.2]),
    ]
    side = Samples("before", [Run(0.0, 1.0, times, None, SchedulerStats(decode_seconds=0.5))] * 2)
    expected = {
        "decode time": [0.5, 0.5],
        "total time": [1.0, 1.0],
        "decode throughput": [12.0, 12.0],
        "total throughput": [6.0, 6.0],
        "TTFT": [200, 500],
        "TPOT": [150, 250],
        "ITL": [100, 200, 200, 300],
        "reader ITL": [0, 300, 200, 400],
        "delay": [100, 0, 100, 100, 100, 200],
        "latency": [500, 1000],
        "queueing": [0, 100],
    }
    assert list(expected) == list(UNITS)
    for metric, values in expected.items():
        assert side.each(metric, "mean") == pytest.approx([np.mean(values)] * 2), metric
        for statistic, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
            assert side.typical(metric, statistic) == pytest.approx(np.percentile(values, percent))
        assert np.isnan(Samples("before", []).typical(metric))


def test_a_ratio_is_of_medians_and_more_is_better():
    found = comparison([2.0, 4.0, 2.2, 2.1, 2.0], [1.0, 2.0, 1.0, 1.0, 1.0])
    both = zip(found.before.throughputs, found.after.throughputs, strict=True)
    assert min(after / before for before, after in both) <= found.speedup.low <= found.speedup.high <= 2.2
    for metric in ("total time", "decode time", "total throughput", "decode throughput"):
        assert found.ratio(metric).value == pytest.approx(2.1), metric
    assert found.ratio("TPOT", "mean").value == 1.0
    assert "2 tokens/s before, 4 tokens/s after: faster (2.100x " in found.effect("total throughput")


def test_a_control_is_the_engine_before_in_the_same_rounds():
    found = comparison([2.1] * 5, [2.0] * 5, [2.1, 2.1, 2.1, 2.1 / 1.1, 2.1 / 1.1])
    for better in (found.speedup, found.ratio("total throughput")):
        assert better.value == pytest.approx(1.05, rel=0.01)
        assert better.control.high == pytest.approx(1.1)
        assert better.verdict == "no difference measurable here"
        assert found.claim(better).endswith(f"pairs; the same engine twice: {better.control})")
    assert replace(found, control=Samples("control", [])).speedup.verdict == "faster"
    assert found.table()["the same engine twice"].iloc[0] == str(found.ratio("total throughput").control)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([2.0] * 5, [1.0] * 5, "059: faster (2.000x [2.000, 2.000] over 5"),
        ([1.0] * 5, [2.0] * 5, "059: slower (0.500x [0.500, 0.500] over 5"),
        ([1.0, 1.2] * 3, [1.2, 1.0] * 3, "059: no difference measurable here (1.000x [0.833, 1.200] over 6"),
        ([2.0], [1.0], "059: too few pairs to tell, take 5 or more (2.000x [2.000, 2.000] over 1"),
    ],
)
def test_a_verdict_says_what_the_numbers_allow(before, after, says):
    found = comparison(before, after)
    first, *_, last = found.sentences("059")
    assert first.startswith(says)
    assert last == f"{found.provenance}."


# -- engines --------------------------------------------------------------------------------------------------------


class SwapsKeysAndValues(BEST.kv_append):
    def __call__(self, inputs):
        append = super().__call__(inputs)
        return lambda layer_idx, k, v: append(layer_idx, v, k)


WRONG = SimpleNamespace(number="wrong", title="", after=BEST.with_(kv_append=SwapsKeysAndValues))


@pytest.fixture
def runner(monkeypatch):
    """Runs a scheduler, and notes the lesson of the engine: engines are made by `runner.engine`, in `compare`, too."""

    def engine(model, config=None, parts=BEST):
        config = config or EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False)
        made = InferenceEngine(model, config, parts)
        made.number = next((rung.number for rung in LESSONS if rung.after is parts), "wrong")
        return made

    def run(engine, workload):
        run.order.append(engine.number)
        return run_scheduler(engine, workload)

    run.order, run.engine = [], engine
    monkeypatch.setattr(module, "InferenceEngine", engine)
    return run


def test_two_engines_are_compared_by_their_runs(small_model, runner):
    engines = [runner.engine(small_model, parts=rung.after) for rung in LESSONS[1:3]]
    found = compare(*engines, WORKLOAD, pairs=3, runner=runner)
    assert runner.order == ["036", "038", "036"] * 4  # the one before twice in each round, the first does not count
    assert len(found.before.runs) == len(found.after.runs) == len(found.control.runs) == 3
    table = found.table()
    assert len(table) == len(HEADLINES)
    medians = [np.median([12 / run.total_seconds for run in side.runs]) for side in found.sides]
    assert table.loc["total throughput (tokens/s)", ["before", "after"]].tolist() == pytest.approx(medians)
    assert table.loc["ITL p99 (ms)", "times better"] == str(found.ratio("ITL", "p99"))
    assert table.attrs["provenance"] == found.provenance
    told = found.conditions
    assert (told.requests, told.tokens, told.prompt_tokens, told.block_size, told.rounds) == (2, 12, 3, 4, 3)


def test_a_ladder_runs_each_rung_with_its_own_parts(small_model, runner):
    found = compare_ladder(small_model, WORKLOAD, rounds=2, runner=runner)
    numbers = [rung.number for rung in LESSONS]
    assert runner.order == [*numbers, *numbers[::-1], *numbers]
    assert [len(rung.runs) for rung in found.rungs] == [2] * len(LESSONS)
    table = found.table()
    assert table["lesson"].to_dict() == {rung.number: rung.title for rung in LESSONS}
    first, fourth = (found.rungs[n].each("total time") for n in (0, 3))
    assert table["ratio to the first"]["035"] == "1.000x [1.000, 1.000]"
    assert table["ratio to the first"]["059"] == str(ratio(first, fourth))


def test_a_ladder_measures_its_first_rung_twice(small_model, runner):
    found = compare_ladder(small_model, WORKLOAD, 1, rungs=LESSONS[:2], runner=runner, control=LESSONS[0])
    assert runner.order == ["035", "036", "035", "035", "036", "035"]
    assert found.speedups[1].control == ratio(found.rungs[0].each("total time"), found.control.each("total time"))


def test_other_tokens_end_a_comparison_at_once(small_model, runner):
    engines = [runner.engine(small_model, parts=parts) for parts in (BEST, WRONG.after)]
    with pytest.raises(RosecourseError, match="different tokens"):
        compare(*engines, Workload.of([(1, 2, 3)], PARAMS), pairs=5, runner=runner)
    assert len(runner.order) == 2
    with pytest.raises(RosecourseError, match="different tokens"):
        compare_ladder(small_model, Workload.of([(1, 2, 3)], PARAMS), rounds=1, rungs=[LESSONS[0], WRONG])
    with pytest.raises(ConfigError, match="0 runs of each"):
        compare(*engines, WORKLOAD, pairs=0)


@pytest.mark.parametrize(
    ("dtype", "interval", "prefix_cache", "fails"),
    [
        (torch.float32, 0.001, False, True),
        (torch.float16, 0.0, False, True),
        (torch.float16, 0.001, False, False),
        (torch.float16, 0.0, True, False),
    ],
)
def test_tokens_may_differ_where_rounding_may(small_model, dtype, interval, prefix_cache, fails):
    """In float16 and with batches that differ it is said; in float32, or all at once, nothing is compared."""
    told = copy(small_model)
    told.dtype = dtype  # it still computes in float32, as the engine has been told
    engines = [InferenceEngine(small_model, EngineConfig(prefix_cache=prefix_cache)) for _ in range(2)]
    runs = []

    def other_each_time(engine, workload):
        engine.model = told
        run = run_scheduler(engine, workload)
        run.completions[0][-1] = len(runs)
        runs.append(run)
        return run

    workload = Workload.of(WORKLOAD.prompts, PARAMS, interval)
    if fails:
        with pytest.raises(RosecourseError, match="different tokens"):
            compare(*engines, workload, pairs=1, runner=other_each_time)
    else:
        assert not compare(*engines, workload, pairs=1, runner=other_each_time).conditions.same_tokens
