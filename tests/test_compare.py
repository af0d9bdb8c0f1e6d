"""Comparing: the order of the runs, the ratio and its interval, and the benchmark built on them."""

import json

import numpy as np
import pytest

from rosecourse import (
    BEST,
    EngineConfig,
    InferenceEngine,
    RosecourseError,
    SamplingParams,
    benchmark_transformers,
    lesson,
)
from rosecourse.bench.compare import Ratio, compare, interleave, ratio
from rosecourse.bench.workload import Workload


def test_runs_are_interleaved_and_the_first_pair_does_not_count():
    order = []

    def run(name):
        order.append(name)
        return len(order)

    before, after = interleave(lambda: run("A"), lambda: run("B"), pairs=3)
    assert "".join(order) == "ABBAABBA"
    assert (before, after) == ([4, 5, 8], [3, 6, 7])


def test_the_interval_covers_a_known_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        noise = rng.lognormal(0, 0.1, size=(2, 15))
        found = ratio(1.5 * noise[0], noise[1], resamples=500, seed=seed)
        covered += found.low <= 1.5 <= found.high
        assert found.low <= found.value <= found.high
    assert 0.88 <= covered / 200 <= 1.0


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.01, 1.2, "faster"), (0.7, 0.99, "slower"), (0.95, 1.1, "no difference measurable here")],
)
def test_verdicts(low, high, verdict):
    assert Ratio((low + high) / 2, low, high).verdict == verdict


PARAMS = SamplingParams(max_new_tokens=6, stop_on_eos=False)


def engines(model, *parts):
    return [InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False), p) for p in parts]


def test_two_engines_are_compared_by_their_runs(small_model):
    rung = lesson("038")
    workload = Workload(((1, 2, 3), (4, 5)), PARAMS)
    found = compare(*engines(small_model, rung.before, rung.after), workload, pairs=3)
    assert len(found.before) == len(found.after) == 3
    table = found.table()
    assert list(table.columns) == ["before", "after"]
    assert table.loc["throughput (tokens/s)", "before"] == pytest.approx(
        np.median([12 / run.total_seconds for run in found.before])
    )
    pooled = np.concatenate([np.diff(times.tokens) for run in found.after for times in run.times])
    assert table.loc["ITL p99 (ms)", "after"] == pytest.approx(1e3 * np.percentile(pooled, 99))
    assert found.speedup == ratio([r.total_seconds for r in found.before], [r.total_seconds for r in found.after])
    assert found.verdict("038").startswith(f"038: {found.speedup.verdict} (")
    assert "over 3 interleaved pairs" in found.verdict("038")


def test_engines_with_other_tokens_are_not_compared(small_model):
    class SwapsKeysAndValues(BEST.kv_append):
        def __call__(self, sessions, keys, values):
            super().__call__(sessions, values, keys)

    wrong = BEST.with_(kv_append=SwapsKeysAndValues)
    with pytest.raises(RosecourseError, match="different tokens"):
        compare(*engines(small_model, BEST, wrong), Workload(((1, 2, 3),), PARAMS), pairs=1)


SMALL = ["--device", "cpu", "--batch-size", "2", "--max-new-tokens", "4", "--pairs", "2"]


def test_benchmark_transformers(capsys, tmp_path):
    file = tmp_path / "out.json"
    assert benchmark_transformers.main([*SMALL, "--lesson", "035", "--json", str(file)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "Same tokens: yes, 8 of them, greedy"
    assert out[3].startswith("rosecourse 035 p50/mean: ")
    assert out[4].startswith("Ratio: ")
    found = json.loads(file.read_text())
    assert found["command"].startswith("python -m rosecourse.benchmark_transformers --batch-size 2")
    assert found["same_tokens"] is True
    assert len(found["transformers_seconds"]) == len(found["engine_seconds"]) == 2


def test_other_tokens_end_the_comparison(capsys, monkeypatch):
    monkeypatch.setattr(benchmark_transformers, "transformers_run", lambda *_: [[1]])
    assert benchmark_transformers.main(SMALL) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the tokens differ" in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--pairs", "1"], "pairs is 1: give 2 or more"),
        (["--prompt-tokens", "0"], "prompt_tokens is 0: give 1 or more"),
        (["--batch-size", "0"], "max_batch_size is 0"),
        (["--max-new-tokens", "600"], "max_new_tokens is 600"),
    ],
)
def test_bad_calls(capsys, flags, message):
    assert benchmark_transformers.main([*SMALL, *flags]) == 2
    assert message in capsys.readouterr().err
