"""One step behind, and the same tokens: hazards 29, 30 and 33, several schedulers, and streams."""

import random
import sys

import pytest
import torch

from rosecourse import SamplingParams
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.lab.checking.cpu_runners import FixedWidthForward
from tests.support.graph_runners import CPUGraphRunner
from tests.support.interrupts import TRACED
from tests.support.late_device import BEHIND, LATE
from tests.support.pipelines import PROMPTS, Run, alone, asks, assert_empty, make_engine, one_behind
from tests.support.scheduling import check
from tests.support.tag_model import CONTEXT

GREEDY = SamplingParams(12, stop_on_eos=False)


@one_behind
def test_length_stops_are_planned(parts):
    """Hazard 29: Each request is in exactly as many steps as it has tokens to come, also at the end of the context."""
    run = Run(make_engine(parts, max_batch_size=8))
    steps, depths = {}, []
    launch = run.engine.pipeline.launch

    def counted(batch):
        for session in batch.sessions:
            steps[session] = steps.get(session, 0) + 1
            assert session.num_cached_tokens < CONTEXT - 1, "past the context"
        launch(batch)
        depths.append(run.engine.num_in_flight)

    run.engine.pipeline.launch = counted
    new = [CONTEXT - len(prompt) for prompt in PROMPTS[:3]] + [1, 2, 3]
    sessions = run.submit_all(PROMPTS[:6], asks(new))
    run.step()
    while run.scheduler.has_work:
        run.step()
        assert run.engine.num_in_flight <= 1, "the host is two steps behind"
    run.finish()
    assert max(depths) == 2
    assert [steps.get(session, 0) for session in sessions] == [most - 1 for most in new]
    run.assert_as_alone()


@one_behind
def test_prefixes_are_remembered_when_their_flag_has_been_read(parts):
    """Hazard 29: a prefill makes NaN, and fails before the host has read that; the next must not find its blocks."""
    run = Run(engine := make_engine(parts))
    run.submit(PROMPTS[2], GREEDY)
    for _ in range(3):
        run.step()
    assert engine.num_in_flight == 1
    run.submit(PROMPTS[5], asks()[5])
    begin, engine.runner.begin = engine.runner.begin, lambda *arguments: 1 / 0
    spoil = engine.kv.write_tokens
    engine.kv.write_tokens = lambda layer, blocks, slots, k, v: spoil(layer, blocks, slots, k * torch.nan, v)
    with pytest.raises(ZeroDivisionError):
        run.step()
    engine.runner.begin, engine.kv.write_tokens = begin, spoil
    run.finish().assert_as_alone()


class Pace:
    """Lets a late device do some of its work in front of any line of the package: the host is slow just there."""

    def __init__(self, device, seed, often):
        self.device, self.random, self.often = device, random.Random(seed), often

    def __enter__(self):
        self.tracer = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *exc_info):
        sys.settrace(self.tracer)

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        if event == "line" and self.device.told and self.random.random() < self.often:
            self.device.catch_up(self.device.done + self.random.randint(1, len(self.device.told)))
        return self._trace


@pytest.mark.parametrize("often", [1.0, 0.1, 0.002])
def test_slow_host_changes_no_token(often):
    """Hazard 30: the device may come as far as it can, in front of any line."""
    run = Run(make_engine(LATE, num_blocks=12))
    run.submit_all()
    with Pace(run.engine.kv.late, 0, often):
        run.scheduler.run()
    assert_empty(run.engine)
    run.assert_as_alone()


@pytest.mark.filterwarnings("ignore:graphs of steps that sample", "ignore:no graph of")
@pytest.mark.parametrize("fault", [None, RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
def test_capture_that_fails_with_a_step_in_flight_loses_nothing(fault, monkeypatch):
    """Hazard 33: who samples joins in the middle, and the graph of that is captured then, after the step in flight."""
    run = Run(make_engine(BEHIND.with_(forward=FixedWidthForward, runner=CPUGraphRunner)))
    run.submit(PROMPTS[2], GREEDY)
    for _ in range(3):
        run.step()
    assert run.engine.num_in_flight == 1
    run.submit(PROMPTS[1], SamplingParams(8, 1.0, seed=3, stop_on_eos=False))
    capture, captures = CPUGraph.capture, []

    def fails(graph, work):
        captures.append(run.engine.num_in_flight)

        def until():
            work()
            if fault is not None:
                raise fault

        capture(graph, until)

    with monkeypatch.context() as patch:
        patch.setattr(CPUGraph, "capture", fails)
        try:
            run.step()
            run.step()
        except KeyboardInterrupt:
            assert isinstance(fault, KeyboardInterrupt)
            check(run.scheduler)
    assert captures == [1]
    run.finish().assert_as_alone()
    assert (run.engine.decode_step.runner.new_graph is None) == isinstance(fault, RuntimeError)


@one_behind
@pytest.mark.parametrize("seed", range(3))
def test_two_schedulers_on_one_engine_get_their_own_tokens(parts, seed):
    """In any turns: each gets its own tokens, and only those."""
    draw = random.Random(seed)
    engine = make_engine(parts, max_batch_size=2)
    runs = [Run(engine), Run(engine)]
    requests = list(zip(PROMPTS, asks(), strict=True))
    while requests or any(run.scheduler.has_work for run in runs):
        run = draw.choice(runs)
        if requests and draw.random() < 0.3:
            run.submit(*requests.pop())
        for session, token in run.scheduler.step():
            assert session in run.sessions
            run.got.setdefault(session, []).append(token)
        engine.audit([s for each in runs for s in each.sessions])
    for run in runs:
        run.finish().assert_as_alone()


@one_behind
def test_blocks_of_another_scheduler_are_awaited(parts):
    """Its request has ended, and a step in flight still writes to them: whoever needs them lets that land."""
    engine = make_engine(parts, num_blocks=5, prefix_cache=False)
    first, second = Run(engine), Run(engine)
    tokens = alone(tuple(PROMPTS[3]), GREEDY)[0]
    engine.eos_token_id = next(t for place, t in enumerate(tokens) if place > 1 and t not in tokens[:place])
    session = first.submit(PROMPTS[3], SamplingParams(11, stop_on_eos=True))
    while not session.finished:
        first.step()
    assert engine.runner.is_in_flight(session)
    second.submit(PROMPTS[5], SamplingParams(9, stop_on_eos=False))
    second.step()
    assert session.table is None
    second.finish().assert_as_alone()
    first.finish()
