"""The physical floor: the bytes by hand, and a bandwidth that is measured as it says."""

from types import SimpleNamespace

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.floor import bytes_per_run, copy_bandwidth, kv_bytes_per_position, share_of_floor, weight_bytes
from rosecourse.measure.workload import Run, Workload, run_scheduler
from rosecourse.models.load import RANDOM_SHAPES
from rosecourse.request.session import SessionTimes


def test_the_bytes_of_a_step_are_as_by_hand(small_model):
    """GPT-2 in float16: 247.3 MB, and 36,864 B for each live position. Grouped heads have less of K and V."""
    gpt2, llama = RANDOM_SHAPES["gpt2"], RANDOM_SHAPES["llama-8b"]
    assert weight_bytes(gpt2, torch.float16) == 2 * (124_439_808 - 1024 * 768) == weight_bytes(gpt2, torch.float32) / 2
    assert kv_bytes_per_position(gpt2, torch.float16) == 12 * 2 * 768 * 2 == 36_864
    assert kv_bytes_per_position(llama, torch.bfloat16) == 2 * 2 * 32 * 8 * 128
    held = sum(w.nbytes for w in small_model.weights.values()) - small_model.wpe.nbytes
    assert weight_bytes(small_model.shape, small_model.dtype) == held
    assert share_of_floor(100, 2.0, 400) == 0.125


def test_the_bytes_of_a_run_are_those_of_its_steps(small_model, model):
    """Prompts of 3 and 5 tokens, 4 new ones: the first comes from prefill, then three steps, each over one more."""
    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=2, prefix_cache=False))
    params = SamplingParams(max_new_tokens=4, stop_on_eos=False)
    workload = Workload.of(((1, 2, 3), (4, 5, 6, 7, 8)), params)
    weights, position = (of(small_model.shape, torch.float32) for of in (weight_bytes, kv_bytes_per_position))
    expected = 3 * weights + (3 + 5 + 4 + 6 + 5 + 7) * position
    assert bytes_per_run(small_model, workload, run_scheduler(engine, workload)) == expected
    run = Run(0.0, 3.0, [SessionTimes(tokens=[1.0, 2.0, 3.0])], None, SchedulerStats(decode_steps=2))
    prompts = "My dear sister,", tuple(model.tokenizer.encode("My dear sister,"))  # a text counts with its tokens
    text, tokens = (bytes_per_run(model, Workload.of((prompt,), params), run) for prompt in prompts)
    assert text == tokens


def test_a_bandwidth_counts_both_ways_in_the_shortest_time(monkeypatch):
    assert 0 < copy_bandwidth(torch.device("cpu"), budget=0.001) < 1e13
    moments = iter([0.0, 3.0, 3.5, 5.0, 5.75])
    monkeypatch.setattr("rosecourse.measure.floor.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    assert copy_bandwidth("cpu", budget=4.9) == pytest.approx(2 * 2**27 / 0.5)
