"""The physical floor: the bytes by hand, and a bandwidth that is measured as it says."""

from types import SimpleNamespace

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, SamplingParams
from rosecourse.engine.scheduler import SchedulerStats
from rosecourse.measure.floor import (
    bytes_per_run,
    copy_bandwidth,
    kv_bytes_per_position,
    share_of_floor,
    weight_bytes,
)
from rosecourse.measure.workload import Run, Workload, run_scheduler
from rosecourse.models.load import RANDOM_SHAPES
from rosecourse.request.session import SessionTimes


def bytes_of_a_step(model, context_lens):
    """The weights once, and K and V of each live position once."""
    return weight_bytes(model.shape, model.dtype) + sum(context_lens) * kv_bytes_per_position(model.shape, model.dtype)


GPT2 = SimpleNamespace(shape=RANDOM_SHAPES["gpt2"], dtype=torch.float16)  # no weights: only their sizes matter


def test_the_bytes_of_gpt2_in_float16():
    """247.3 MB, and 36,864 B for each live position; 851 MB at batch 64 and a mean context of 256."""
    assert weight_bytes(GPT2.shape, GPT2.dtype) == 2 * (124_439_808 - 1024 * 768) == 247_306_752
    assert kv_bytes_per_position(GPT2.shape, GPT2.dtype) == 12 * 2 * 768 * 2 == 36_864
    assert bytes_of_a_step(GPT2, []) == 247_306_752
    assert bytes_of_a_step(GPT2, [256] * 64) == bytes_of_a_step(GPT2, [0, 512] * 32) == 247_306_752 + 64 * 256 * 36_864
    assert round(bytes_of_a_step(GPT2, [256] * 64) / 1e6) == 851
    assert weight_bytes(GPT2.shape, torch.float32) == 2 * weight_bytes(GPT2.shape, torch.float16)


def test_the_weights_counted_are_those_of_a_loaded_model(small_model):
    held = sum(w.nbytes for w in small_model.weights.values()) - small_model.wpe.nbytes
    assert weight_bytes(small_model.shape, small_model.dtype) == held


def test_the_bytes_of_a_run_are_those_of_its_steps(small_model):
    """Prompts of 3 and 5 tokens, 4 new ones: the first comes from prefill, then three steps, each over one more."""
    engine = InferenceEngine(small_model, EngineConfig(block_size=4, max_batch_size=2, prefix_cache=False))
    workload = Workload.of(((1, 2, 3), (4, 5, 6, 7, 8)), SamplingParams(max_new_tokens=4, stop_on_eos=False))
    seen = []
    real = engine.runner.launch

    def spy(batch):
        seen.append([session.num_cached_tokens for session in batch.sessions])
        return real(batch)

    engine.runner.launch = spy
    run = run_scheduler(engine, workload)
    assert seen == [[3, 5], [4, 6], [5, 7]]
    expected = sum(bytes_of_a_step(small_model, lens) for lens in seen)
    assert bytes_per_run(small_model, workload, run) == expected


def test_a_text_counts_with_the_tokens_that_it_has(model):
    prompt = "My dear sister,"
    ids = tuple(model.tokenizer.encode(prompt))
    run = Run(0.0, 3.0, [SessionTimes(tokens=[1.0, 2.0, 3.0])], None, SchedulerStats(decode_steps=2))
    params = SamplingParams(max_new_tokens=3)
    text, tokens = (bytes_per_run(model, Workload.of((p,), params), run) for p in (prompt, ids))
    assert text == tokens == bytes_of_a_step(model, [len(ids)]) + bytes_of_a_step(model, [len(ids) + 1])


def test_the_share_is_floor_seconds_over_measured_seconds():
    """The figures of an H200: 851 MB at 4.26 TB/s are 0.2 ms; a step of 2 ms is at a tenth of the floor."""
    assert share_of_floor(bytes_of_a_step(GPT2, [256] * 64), 0.002, 4.26e12) == pytest.approx(0.1, rel=0.01)
    assert share_of_floor(100, 1.0, 100) == 1.0


def test_a_bandwidth_counts_what_is_read_and_what_is_written_in_the_shortest_time(monkeypatch):
    moments = iter([0.0, 3.0, 3.5, 5.0, 5.75])
    monkeypatch.setattr("rosecourse.measure.floor.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    assert copy_bandwidth("cpu", budget=4.9) == 2 * 2**27 / 0.5


def test_a_bandwidth_is_measured_here():
    assert 0 < copy_bandwidth(torch.device("cpu"), budget=0.001) < 1e13
