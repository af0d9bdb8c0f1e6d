"""The named ranges of a decode step: what a profiler sees."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rosecourse import LESSONS, InferenceEngine, SamplingParams
from rosecourse.commands.engines import config_of
from rosecourse.decode import step as ranges
from tests.support.commands import benchmark_scheduler

STEP = "roseinfer.decode_step_sessions"
FORWARD = "roseinfer.model.forward"
TABLES = [f"{STEP}.build_block_tables", f"{STEP}.h2d_block_tables"]


def names_of(number):
    """The ranges of a step. From 063 on the append is a part of the forward, from 064 on no table is built.

    From 066 on the forward is a part of the run, and a graph knows no ranges.
    """
    if number < "063":
        return [*TABLES, FORWARD, "roseinfer.kv.append_token"]
    if number == "063":
        return [f"{STEP}.place", *TABLES, FORWARD]
    return [f"{STEP}.place", f"{STEP}.plan", FORWARD if number < "066" else f"{STEP}.run"]


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_a_profiler_sees_each_name_of_a_rung_once_a_step(rung, small_model):
    engine = InferenceEngine(small_model, parts=rung.after)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=8))
    engine.take_tokens([session], engine.prefill([session]))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        engine.decode_step_sessions([session])
    seen = [event.name for event in profiler.events() if event.name.startswith("roseinfer.")]
    assert sorted(seen) == sorted(names_of(rung.number))


def test_nvtx_ranges_are_closed_whatever_happens(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    with pytest.raises(KeyError), ranges.nvtx_range("outer"), ranges.nvtx_range("inner"):
        raise KeyError
    assert calls == ["outer", "inner", "pop", "pop"]
    for value in ("0", "1"):  # the switch is read at the edge
        monkeypatch.setenv("ROSEINFER_NVTX", value)
        assert config_of(benchmark_scheduler.flags()).nvtx is (value == "1")


def test_a_range_is_nothing_where_nobody_looks():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert ranges.range_for(cuda, nvtx=True) is ranges.nvtx_range
    assert ranges.range_for(cuda, nvtx=False) is ranges.range_for(cpu, nvtx=True) is ranges.profiler_range
    assert ranges.profiler_range("roseinfer.step") is ranges.NO_RANGE
    with profile(activities=[ProfilerActivity.CPU]):
        assert isinstance(ranges.profiler_range("roseinfer.step"), record_function)
    assert ranges.profiler_range("roseinfer.step") is ranges.NO_RANGE
