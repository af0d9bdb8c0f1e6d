"""Comparing: the order of the runs, the ratio, its interval and its control."""

from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rosecourse import (
    BEST,
    LESSONS,
    ConfigError,
    EngineConfig,
    InferenceEngine,
    RosecourseError,
    SamplingParams,
    lesson,
)
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.compare import HEADLINES, Comparison, Conditions, compare, compare_ladder
from rosecourse.measure.metrics import UNITS
from rosecourse.measure.samples import Samples
from rosecourse.measure.stats import interleave_all, median_interval, ratio
from rosecourse.measure.workload import Run, Workload, run_scheduler
from rosecourse.request.session import SessionTimes

RUNGS = [rung.number for rung in LESSONS]


def rung_of(engine):
    """The number of the lesson after which an engine is."""
    step = engine.decode_step
    work = getattr(getattr(step, "runner", None), "work", None)  # holds those that the step has handed to its runner

    def kind(name):
        return type(getattr(step, name, None) or getattr(work, name, None))

    def made_of(parts):
        names = ("block_tables", "forward", "kv_append", "copy_blocks", "rows", "runner")
        rest = {name: getattr(parts, name) for name in names}
        alike = [kind(name) is (type(None) if part is None else part) for name, part in rest.items()]
        if hasattr(work, "forward"):
            alike.append(type(work.forward.model.ops) is parts.ops)
        return type(engine.kv) is parts.cache and type(step) is parts.step and all(alike)

    return next(rung.number for rung in LESSONS if made_of(rung.after))


def test_several_are_interleaved_in_alternating_order():
    order = []
    works = [lambda name=name: order.append(name) or len(order) for name in "ABC"]
    samples = interleave_all(works, rounds=2)
    assert "".join(order) == "ABCCBAABC"
    assert samples == [[6, 7], [5, 8], [4, 9]]


def test_the_interval_covers_a_known_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        noise = rng.lognormal(0, 0.1, size=(2, 15))
        found = ratio(1.5 * noise[0], noise[1])
        covered += found.low <= 1.5 <= found.high
        assert found.low <= found.value <= found.high
    assert 0.88 <= covered / 200 <= 1.0


def test_a_median_has_the_interval_of_its_resamplings():
    found = median_interval([3.0, 1.0, 2.0, 5.0, 4.0])
    assert (found.value, found.low, found.high) == (3.0, 1.0, 5.0)
    assert median_interval([2.0, 2.0]) == median_interval([2.0])


SIDES = {"before": [2.1] * 5, "after": [2.0] * 5, "control": [2.1, 2.1, 2.1, 2.1 / 1.1, 2.1 / 1.1]}
CONDITIONS = Conditions(2, 8, 3, 4, 5, "tiny", "float32", "a CPU (1 thread)", "2.13")


def run_of(*requests, seconds=None):
    """A run whose requests got their tokens at these times, in seconds from its start."""
    times = [SessionTimes(0.0, 0.0, list(moments)) for moments in requests]
    total = seconds or max(max(moments) for moments in requests)
    return Run(0.0, total, times, None, SchedulerStats(decode_seconds=total / 2))


def comparison(before_seconds, after_seconds):
    sides = [[run_of([1, 2, 3, 4], seconds=s) for s in seconds] for seconds in (before_seconds, after_seconds)]
    return Comparison(Samples("before", sides[0]), Samples("after", sides[1]), CONDITIONS)


def test_the_samples_of_a_side():
    runs = [run_of([0.1, 0.2, 0.4], [0.1, 0.2, 0.3]), run_of([0.2, 0.4, 0.5], seconds=1.0)]
    side = Samples("before", runs)
    assert side.each("total time") == [0.4, 1.0]
    assert side.throughputs == pytest.approx([15.0, 3.0])
    assert side.throughput.value == pytest.approx(9.0)
    assert side.typical("ITL", "p99") == pytest.approx(np.mean([np.percentile([100, 100, 100, 200], 99), 199]))
    assert side.interval("ITL", "p99").value == side.typical("ITL", "p99")


def test_along_the_steps_a_stall_of_one_run_is_noise_and_one_of_most_runs_stays():
    """The first request's gaps; each place has its own median, and the second request does not count."""
    runs = [run_of([0.0, 0.1, 0.3, 0.4], [0.0, 9.0]), run_of([0.0, 0.1, 0.3, 0.9]), run_of([0.0, 0.8, 1.0, 1.1])]
    assert Samples("before", runs).itl_along_steps_ms == pytest.approx([100, 200, 100])


def test_a_throughput_ratio_is_the_ratio_of_the_times():
    found = comparison([2.0, 4.0, 2.2, 2.1, 2.0], [1.0, 2.0, 1.0, 1.0, 1.0])
    both = zip(found.before.throughputs, found.after.throughputs, strict=True)
    assert found.speedup.value == pytest.approx(2.1)  # of the medians, 2.1 s and 1.0 s
    assert min(after / before for before, after in both) <= found.speedup.low <= found.speedup.high <= 2.2
    for metric in ("total time", "decode time", "total throughput", "decode throughput"):
        assert found.ratio(metric).value == pytest.approx(2.1), metric  # better is more throughput, and less time
    assert found.ratio("TPOT", "mean").value == 1.0
    assert "2 tokens/s before, 4 tokens/s after: faster (2.100x " in found.effect("total throughput")


def test_each_metric_in_its_unit_by_hand():
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


def test_the_control_is_the_engine_before_in_the_same_rounds():
    sides = [Samples(name, [run_of([1, 2, 3, 4], seconds=s) for s in seconds]) for name, seconds in SIDES.items()]
    found = Comparison(sides[0], sides[1], CONDITIONS, control=sides[2])
    for better in (found.speedup, found.ratio("total throughput")):
        assert better.value == pytest.approx(1.05, rel=0.01)
        assert better.control.high == pytest.approx(1.1)
        assert better.verdict == "no difference measurable here"
    assert replace(found, control=Samples("control", [])).speedup.verdict == "faster"
    assert found.table()["the same engine twice"].iloc[0] == str(found.ratio("total throughput").control)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ([2.0] * 5, [1.0] * 5, "059: faster (2.000x [2.000, 2.000] over 5 interleaved pairs)"),
        ([1.0] * 5, [2.0] * 5, "059: slower (0.500x [0.500, 0.500] over 5 interleaved pairs)"),
        ([1.0, 1.2] * 3, [1.2, 1.0] * 3, "059: no difference measurable here (1.000x [0.833, 1.200] over 6"),
        ([2.0], [1.0], "059: too few pairs to tell, take 5 or more (2.000x [2.000, 2.000] over 1 interleaved pairs)"),
    ],
)
def test_sentences_say_what_the_numbers_allow(before, after, says):
    found = comparison(before, after)
    assert found.verdict("059").startswith(says)
    first, second, third, last = found.sentences("059")
    assert first.startswith(says)
    assert "ITL p50 1000.00 ms before, 1000.00 ms after: " in second
    assert "ITL p99 1000.00 ms before, 1000.00 ms after: " in third
    assert last == f"{found.provenance}."


PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)
WORKLOAD = Workload.of(((1, 2, 3), (4, 5)), PARAMS)


def engines(model, *parts):
    return [InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False), p) for p in parts]


def test_two_engines_are_compared_by_their_runs(small_model):
    rung = lesson("038")
    order = []

    def run(engine, workload):
        order.append(rung_of(engine))
        return run_scheduler(engine, workload)

    found = compare(*engines(small_model, rung.before, rung.after), WORKLOAD, pairs=3, runner=run)
    assert order == ["036", "038", "036"] * 4  # the engine before twice in each round, the first does not count
    assert len(found.before.runs) == len(found.after.runs) == len(found.control.runs) == 3
    table = found.table()
    assert len(table) == len(HEADLINES)
    assert table.loc["total throughput (tokens/s)", "before"] == pytest.approx(
        np.median([12 / run.total_seconds for run in found.before.runs])
    )
    own = [np.concatenate([np.diff(times.tokens) for times in run.times]) for run in found.after.runs]
    assert table.loc["ITL p99 (ms)", "after"] == pytest.approx(1e3 * np.median([np.percentile(g, 99) for g in own]))
    assert replace(found.speedup, control=None) == ratio(
        found.before.each("total time"), found.after.each("total time")
    )
    assert table.loc["ITL p99 (ms)", "times better"] == str(found.ratio("ITL", "p99"))
    assert table.attrs["provenance"] == found.provenance
    assert found.provenance.startswith("2 requests x 6 tokens; 1 warm-up and 3 counted runs of each, interleaved; ")
    assert "(1 thread)" in found.provenance
    assert (found.conditions.prompt_tokens, found.conditions.block_size) == (3, 4)


class SwapsKeysAndValues(BEST.kv_append):
    def __call__(self, inputs):
        append = super().__call__(inputs)
        return lambda layer_idx, k, v: append(layer_idx, v, k)


def test_engines_with_other_tokens_are_not_compared_and_the_first_difference_ends_it(small_model):
    runs = []

    def run(engine, workload):
        runs.append(engine)
        return run_scheduler(engine, workload)

    wrong = BEST.with_(kv_append=SwapsKeysAndValues)
    with pytest.raises(RosecourseError, match="different tokens"):
        compare(*engines(small_model, BEST, wrong), Workload.of(((1, 2, 3),), PARAMS), pairs=5, runner=run)
    assert len(runs) == 2
    with pytest.raises(ConfigError, match="0 runs of each"):
        compare(*engines(small_model, BEST, BEST), Workload.of(((1, 2, 3),), PARAMS), pairs=0)


def test_the_ladder_runs_each_rung_with_its_own_parts(small_model):
    order = []

    def run(engine, workload):
        order.append(rung_of(engine))
        return run_scheduler(engine, workload)

    config = EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False)
    found = compare_ladder(small_model, WORKLOAD, rounds=2, config=config, runner=run)
    assert order == [*RUNGS, *RUNGS[::-1], *RUNGS]
    assert [len(rung.runs) for rung in found.rungs] == [2] * len(LESSONS)
    table = found.table()
    assert list(table.index) == [rung.number for rung in LESSONS]
    assert list(table["lesson"]) == [rung.title for rung in LESSONS]
    first, fourth = (found.rungs[n].each("total time") for n in (0, 3))
    assert table.loc["035", "ratio to the first"] == "1.000x [1.000, 1.000]"
    assert table.loc["059", "ratio to the first"] == str(ratio(first, fourth))


def test_the_first_rung_is_measured_twice_where_it_is_the_control(small_model):
    order = []

    def run(engine, workload):
        order.append(rung_of(engine))
        return run_scheduler(engine, workload)

    found = compare_ladder(small_model, WORKLOAD, 2, rungs=LESSONS[:2], runner=run, control=LESSONS[0])
    assert order == ["035", "036", "035", "035", "036", "035", "035", "036", "035"]
    assert len(found.rungs) == 2
    assert found.speedups[1].control == ratio(found.rungs[0].each("total time"), found.control.each("total time"))


def test_a_ladder_of_engines_with_other_tokens_is_refused(small_model):
    wrong = SimpleNamespace(number="wrong", title="", after=BEST.with_(kv_append=SwapsKeysAndValues))
    with pytest.raises(RosecourseError, match="different tokens"):
        compare_ladder(small_model, Workload.of(((1, 2, 3),), PARAMS), rounds=1, rungs=[LESSONS[0], wrong])


# -- tokens --------------------------------------------------------------------------------------------------------


class OtherEachTime:
    """A runner whose tokens change from run to run, as float16 rounding may do where the batches do."""

    def __init__(self):
        self.runs = 0

    def __call__(self, engine, workload):
        run = run_scheduler(engine, workload)
        self.runs += 1
        run.completions[0][-1] = self.runs
        return run


def test_tokens_may_differ_only_where_rounding_and_batches_may(small_model):
    """In float16 and with timed arrivals it is said; in float32, or all at once, nothing is compared."""
    half = copy(small_model)
    half.dtype = torch.float16  # it still computes in float32, as the engine has been told
    cases = ((small_model, 0.001, False, True), (half, 0.0, False, True), (half, 0.001, False, False))
    for model, interval, prefix_cache, fails in (*cases, (half, 0.0, True, False)):
        config = EngineConfig(max_batch_size=2, prefix_cache=prefix_cache)
        made = [InferenceEngine(small_model, config) for _ in range(2)]
        for engine in made:
            engine.model = model
        workload = Workload.of(WORKLOAD.prompts, PARAMS, interval)
        if fails:
            with pytest.raises(RosecourseError, match="different tokens"):
                compare(*made, workload, pairs=1, runner=OtherEachTime())
        else:
            found = compare(*made, workload, pairs=1, runner=OtherEachTime())
            assert not found.conditions.same_tokens
            assert "some tokens differ, as batches and rounding do" in found.provenance
