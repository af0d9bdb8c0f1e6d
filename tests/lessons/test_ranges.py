"""The named ranges of a decode step: what a profiler sees."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from rosecourse import LESSONS, InferenceEngine, SamplingParams
from rosecourse.commands.engines import config_of
from rosecourse.decode import step as ranges
from tests.support.commands import benchmark_scheduler

FORWARD = "roseinfer.model.forward"
PLACE = "roseinfer.decode_step_sessions.place"
PLAN = "roseinfer.decode_step_sessions.plan"
RUN = "roseinfer.decode_step_sessions.run"
TABLES = ["roseinfer.decode_step_sessions.build_block_tables", "roseinfer.decode_step_sessions.h2d_block_tables"]
APPEND = "roseinfer.kv.append_token"


def names_of(number):
    """The ranges of a step. From 063 on the append is a part of the forward, from 064 on no table is built.

    From 066 on the forward is a part of the run, and a graph knows no ranges.
    """
    if number < "063":
        return [*TABLES, FORWARD, APPEND]
    if number == "063":
        return [PLACE, *TABLES, FORWARD]
    return [PLACE, PLAN, FORWARD if number < "066" else RUN]


@pytest.mark.parametrize("rung", LESSONS, ids=lambda rung: rung.number)
def test_a_profiler_sees_each_name_of_a_rung_once_a_step(rung, small_model):
    engine = InferenceEngine(small_model, parts=rung.after)
    session = engine.new_session([1, 2, 3], SamplingParams(max_new_tokens=8))
    engine.take_tokens([session], engine.prefill([session]))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        engine.decode_step_sessions([session])
    seen = [event.name for event in profiler.events() if event.name.startswith("roseinfer.")]
    assert sorted(seen) == sorted(names_of(rung.number))


@pytest.fixture
def nvtx_calls(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: calls.append("pop"))
    return calls


def test_nvtx_ranges_are_closed_whatever_happens(nvtx_calls):
    with pytest.raises(KeyError), ranges.nvtx_range("outer"), ranges.nvtx_range("inner"):
        raise KeyError
    assert nvtx_calls == ["outer", "inner", "pop", "pop"]


def test_nvtx_is_off_unless_it_is_asked_for_on_cuda():
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert ranges.range_for(cuda, nvtx=True) is ranges.nvtx_range
    assert ranges.range_for(cuda, nvtx=False) is ranges.range_for(cpu, nvtx=True) is ranges.profiler_range


def test_a_range_is_nothing_where_no_profiler_runs():
    assert ranges.profiler_range("roseinfer.step") is ranges.NO_RANGE
    with profile(activities=[ProfilerActivity.CPU]):
        assert isinstance(ranges.profiler_range("roseinfer.step"), record_function)
    assert ranges.profiler_range("roseinfer.step") is ranges.NO_RANGE


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("0", False), ("1", True)])
def test_the_switch_is_read_at_the_edge(value, expected, monkeypatch):
    monkeypatch.delenv("ROSEINFER_NVTX", raising=False)
    if value is not None:
        monkeypatch.setenv("ROSEINFER_NVTX", value)
    assert config_of(benchmark_scheduler.flags()).nvtx is expected
