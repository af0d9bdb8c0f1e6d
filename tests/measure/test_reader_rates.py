"""Rates by the number of readers: what is counted, and that nothing is lost or mixed up."""

from types import SimpleNamespace

import rosecourse as rc
from rosecourse.measure.reader_rates import rates_by_readers, unread_rate


def test_the_rate_counts_the_tokens_of_decode_steps_behind_the_prefill(model, monkeypatch):
    moments = iter((10.0, 12.0))
    clock = SimpleNamespace(perf_counter=lambda: next(moments))
    monkeypatch.setattr("rosecourse.measure.reader_rates.time", clock)
    engine = rc.InferenceEngine(model, rc.EngineConfig(max_batch_size=3, max_seq_len=32, prefix_cache=False))
    assert unread_rate(engine, num_requests=3, steps=6) == 3 * 6 / 2


def test_each_work_has_the_rates_of_its_runs_in_their_order():
    calls = []

    def work(name):
        return lambda count: calls.append((name, count)) or len(calls) + 100 * count

    found = rates_by_readers({"one": work("one"), "other": work("other")}, (1, 8), rounds=2)
    first = [("one", 1), ("other", 1), ("one", 8), ("other", 8)]
    assert calls == [*first, *first[::-1], *first]
    assert found == {"one": {1: [108, 109], 8: [806, 811]}, "other": {1: [107, 110], 8: [805, 812]}}
