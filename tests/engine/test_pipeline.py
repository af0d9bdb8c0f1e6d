"""One step behind, and the same tokens: hazards 28, 29, 30 and 33, several schedulers, and streams."""

import random
import sys
from dataclasses import replace

import pytest
import torch

from rosecourse import SamplingParams
from rosecourse.engine.model_runner import ModelRunner
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.lab.checking.cpu_runners import CPUGraphRunner, FixedWidthForward
from tests.support.interrupts import TRACED
from tests.support.late_device import BEHIND, LATE
from tests.support.pipelines import (
    BEFORE,
    PROMPTS,
    Run,
    SickModel,
    alone,
    asks,
    assert_empty,
    make_engine,
    one_behind,
    told_alone,
)
from tests.support.tag_model import CONTEXT

# -- hazard 28: blocks that a step in flight writes to --------------------------------------------------------------


@one_behind
def test_blocks_come_back_when_no_step_in_flight_writes_to_them(parts):
    """Hazard 28: Requests that end by a token that the host reads a step late; others wait for their blocks.

    Whoever gets a block writes to it at once, and a step in flight must not write to it any more.
    """
    full = [alone(tuple(prompt), params)[0] for prompt, params in zip(PROMPTS, asks(), strict=True)]
    for eos in {tokens[-2] for tokens in full if len(tokens) > 4}:
        run = Run(make_engine(parts, num_blocks=9, max_batch_size=3))
        run.engine.eos_token_id = eos
        run.submit_all(params=asks(stop=True))
        kept = 0
        while run.scheduler.has_work:
            run.step()
            ended = [s for s in run.sessions if s.finished and s.table is not None]
            assert all(run.engine.is_in_flight(session) for session in ended)
            kept += len(ended)
        run.finish()
        assert kept > 0, "nobody ended with a step in flight"


def test_the_device_itself_finds_blocks_that_came_back_at_once(monkeypatch):
    """It looks when it writes, and not when it is told to."""
    monkeypatch.setattr(ModelRunner, "is_in_flight", lambda runner, session: False)
    run = Run(make_engine(LATE))
    run.engine.eos_token_id = alone(tuple(PROMPTS[2]), asks()[2])[0][4]
    run.submit(PROMPTS[2], replace(asks()[2], stop_on_eos=True))
    run.submit(PROMPTS[4], asks()[4])
    with pytest.raises(AssertionError):
        run.finish()
    assert "was not its session's alone" in run.engine.kv.late.wrong[0]


# -- hazard 29: one token too many ----------------------------------------------------------------------------------


@one_behind
def test_length_stops_are_planned(parts):
    """Hazard 29: Each request is in exactly as many steps as it has tokens to come, also at the end of the context."""
    run = Run(make_engine(parts, max_batch_size=8))
    steps = {}
    launch = run.engine.pipeline.launch

    def counted(batch):
        for session in batch.sessions:
            steps[session] = steps.get(session, 0) + 1
            assert session.num_cached_tokens < CONTEXT - 1, "past the context"
        launch(batch)

    run.engine.pipeline.launch = counted
    new = [CONTEXT - len(prompt) for prompt in PROMPTS[:3]] + [1, 2, 3]
    sessions = run.submit_all(PROMPTS[:6], asks(new))
    run.finish()
    assert [steps.get(session, 0) for session in sessions] == [most - 1 for most in new]
    assert run.told() == [told_alone(session) for session in sessions]


@one_behind
def test_prefixes_are_remembered_when_their_flag_has_been_read(parts):
    """Hazard 29: a prefill makes NaN, and fails before the host has read that; the next must not find its blocks."""
    model = SickModel()
    engine = make_engine(parts, model)
    prompt, params = PROMPTS[5], asks()[5]
    run = Run(engine)
    busy = run.submit(PROMPTS[2], SamplingParams(12, stop_on_eos=False))
    for _ in range(3):
        run.step()
    assert engine.num_in_flight == 1
    run.submit(prompt, params)
    begin, engine.runner.begin = engine.runner.begin, lambda *arguments: 1 / 0
    spoil = engine.kv.write_tokens
    engine.kv.write_tokens = lambda layer, blocks, slots, k, v: spoil(layer, blocks, slots, k * torch.nan, v)
    with pytest.raises(ZeroDivisionError):
        run.step()
    engine.runner.begin, engine.kv.write_tokens = begin, spoil
    run.finish()
    assert run.told() == [told_alone(session) for session in (busy, run.sessions[1])]


# -- hazard 30: the ring, and a slow host ---------------------------------------------------------------------------


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
def test_a_slow_host_changes_no_token(often):
    """Hazard 30: the device may come as far as it can, in front of any line."""
    run = Run(make_engine(LATE, num_blocks=12))
    run.submit_all()
    with Pace(run.engine.kv.late, 0, often):
        while run.scheduler.has_work:
            run.step()
    run.finish()
    assert run.told() == [told_alone(session) for session in run.sessions]


# -- hazard 33: a capture that fails --------------------------------------------------------------------------------

GRAPHS = BEHIND.with_(forward=FixedWidthForward, runner=CPUGraphRunner)


@pytest.mark.filterwarnings("ignore:graphs of steps that sample", "ignore:no graph of")
@pytest.mark.parametrize("fault", [None, RuntimeError("out of memory"), KeyboardInterrupt()], ids=repr)
def test_a_capture_that_fails_with_a_step_in_flight(fault, monkeypatch):
    """Hazard 33: who samples joins in the middle, and the graph of that is captured then, after the step in flight."""
    run = Run(make_engine(GRAPHS))
    greedy, sampled = SamplingParams(12, stop_on_eos=False), SamplingParams(8, 1.0, seed=3, stop_on_eos=False)
    run.submit(PROMPTS[2], greedy)
    for _ in range(3):
        run.step()
    assert run.engine.num_in_flight == 1
    run.submit(PROMPTS[1], sampled)
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
            run.check()
    assert captures == [1]
    run.finish()
    assert run.told() == [told_alone(session) for session in run.sessions]
    assert (run.engine.decode_step.runner.new_graph is None) == isinstance(fault, RuntimeError)


@one_behind
def test_the_host_is_one_step_behind_and_never_two(parts):
    few = slice(2, 5)
    run = Run(make_engine(parts))
    run.submit_all(PROMPTS[few], asks()[few])
    depths, steps = [], []
    while run.scheduler.has_work:
        run.step()
        depths.append(run.engine.num_in_flight)
        steps.append(run.scheduler.stats.decode_steps)
    assert set(depths) == {0, 1}
    # No step is launched for nobody: the longest request takes its first token from the prefill.
    assert steps[-1] == max(asks()[few], key=lambda params: params.max_new_tokens).max_new_tokens - 1
    assert depths[1:-1] == [1] * len(depths[1:-1])


@one_behind
@pytest.mark.parametrize("seed", range(3))
def test_two_schedulers_on_one_engine(parts, seed):
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
        run.finish()
        assert run.told() == [told_alone(session) for session in run.sessions]


@one_behind
def test_streams(parts):
    """In turns, and left at any token: nothing is left in flight."""
    engine = make_engine(parts)
    prompt, params = PROMPTS[2], asks()[2]
    expected = list(make_engine(BEFORE).stream(prompt, params))
    assert [token.token_id for token in expected] == alone(tuple(prompt), params)[0]
    assert [*engine.stream(prompt, params)] == expected
    assert_empty(engine)
    for taken in range(len(expected)):
        stream = engine.stream(prompt, params)
        assert [next(stream) for _ in range(taken)] == expected[:taken]
        stream.close()
        assert_empty(engine)
    streams = [engine.stream(prompt, params) for _ in range(2)]
    assert [*zip(*streams, strict=True)] == [*zip(expected, expected, strict=True)]
    assert_empty(engine)


@one_behind
def test_blocks_of_another_scheduler_are_on_their_way_back(parts):
    """Its request has ended, and a step in flight still writes to them: whoever needs them lets that land."""
    engine = make_engine(parts, num_blocks=5, prefix_cache=False)
    first, second = Run(engine), Run(engine)
    params = SamplingParams(max_new_tokens=11, stop_on_eos=True)
    whole = alone(tuple(PROMPTS[3]), replace(params, stop_on_eos=False))[0]
    eos = next(token for place, token in enumerate(whole) if place > 1 and token not in whole[:place])
    engine.eos_token_id = eos
    session = first.submit(PROMPTS[3], params)
    while not session.finished:
        first.step()
    assert engine.is_in_flight(session)
    other = second.submit(PROMPTS[5], SamplingParams(max_new_tokens=9, stop_on_eos=False))
    second.step()
    assert session.table is None
    second.step()
    assert len(other.completion_ids) == 1
    second.finish()
    first.finish()
    assert (session.completion_ids, session.finish_reason) == (whole[: whole.index(eos) + 1], "stop")
    assert (other.completion_ids, other.finish_reason) == told_alone(other)
