"""How the engines of a comparison are held: all at once, or one at a time."""

import weakref

import pytest
import torch

from rosecourse import LESSONS, EngineConfig, InferenceEngine, SamplingParams
from rosecourse.measure import holding
from rosecourse.measure.compare import compare_ladder
from rosecourse.measure.holding import all_kept, cache_bytes, holding_for, one_at_a_time
from rosecourse.measure.workload import Workload, run_scheduler
from tests.support.record_command import rung_of

CONFIG = EngineConfig(block_size=4, max_batch_size=2, max_seq_len=16, prefix_cache=False)
WORKLOAD = Workload.of(((1, 2, 3), (4, 5)), SamplingParams(max_new_tokens=6, stop_on_eos=False))
RUNGS = [LESSONS[0], LESSONS[-1]]


def runs_under(chosen, model):
    """The rung of each run of a ladder of two in two rounds, the first among them, and how many engines there were."""
    engines, seen = weakref.WeakSet(), []

    def runner(engine, workload):
        engines.add(engine)
        seen.append((rung_of(engine), len(engines)))
        return run_scheduler(engine, workload)

    found = compare_ladder(model, WORKLOAD, 1, CONFIG, RUNGS, runner, chosen)
    return seen, found


def test_one_engine_at_a_time_is_warmed_up_for_each_run_and_gone_after_it(small_model):
    first, last = (rung.number for rung in RUNGS)
    rounds = [first, last, last, first]
    seen, found = runs_under(one_at_a_time, small_model)
    assert seen == [(number, 1) for number in rounds for _ in range(2)]
    assert [len(rung.runs) for rung in found.rungs] == [1, 1]
    kept, alike = runs_under(all_kept, small_model)
    assert [number for number, _ in kept] == rounds
    assert kept[-1][1] == 2
    assert [rung.runs[0].completions for rung in found.rungs] == [rung.runs[0].completions for rung in alike.rungs]


@pytest.mark.parametrize("num_blocks", [None, 3])
def test_the_cache_is_as_large_as_the_engines(small_model, num_blocks):
    config = EngineConfig(block_size=4, max_batch_size=2, max_seq_len=16, num_blocks=num_blocks)
    kv = InferenceEngine(small_model, config, LESSONS[0].after).kv
    assert cache_bytes(small_model, config) == kv.keys.nbytes + kv.values.nbytes


def test_memory_is_short_where_the_caches_would_fill_more_than_half_of_it(small_model, monkeypatch):
    assert small_model.device == torch.device("cpu")
    one = cache_bytes(small_model, CONFIG)
    monkeypatch.setattr(holding, "host_memory", lambda: 6 * one)
    assert holding_for(small_model, CONFIG, 3) is all_kept
    assert holding_for(small_model, CONFIG, 4) is one_at_a_time
    monkeypatch.setattr(holding, "host_memory", lambda: float("inf"))  # where the system does not say
    assert holding_for(small_model, CONFIG, 1000) is all_kept
