"""A fault at any point, with steps in flight: nothing is lost or leaked, and the same tokens come out in the end."""

from functools import partial
from itertools import count

import pytest

from rosecourse import BEST, OfflineScheduler, OnlineScheduler, SamplingParams, SchedulerClosed
from tests.engine.test_faults import FaultAt, Planted
from tests.support.fault_soak import soak
from tests.support.interrupts import Scene, strike_lines
from tests.support.late_device import BEHIND, LATE, forgive
from tests.support.pipelines import (
    PROMPTS,
    Run,
    SickModel,
    asks,
    assert_empty,
    make_engine,
    one_behind,
    told_alone,
)

CALLS = ["reserve", "prefill", "can_append", "launch", "land", "begin", "free"]
KEEPS = {("after", "begin"), ("after", "land")}  # who has done its work and raises keeps the tokens
FEW = slice(1, 6)


def world(parts, kind=OnlineScheduler, **config):
    """Five requests, one of a single token, over a pool that makes them preempt each other."""
    run = Run(make_engine(parts, **{"num_blocks": 8, "max_batch_size": 3} | config), kind, prefill_max_batch_size=2)
    run.submit_all(PROMPTS[FEW], asks()[FEW])
    return run


def run_with_fault(run, fault):
    """To the end, or until the scheduler says that it is broken; returns which."""
    for _ in range(200):
        if not run.scheduler.has_work:
            return False
        try:
            run.step()
        except Planted:
            if fault.raised_in != "free":
                assert {*run.scheduler.waiting, *run.scheduler.running} == {s for s in run.samples if not s.finished}
                run.check()
            if (fault.when, fault.raised_in) in KEEPS:
                run.kept = set(run.sessions)
        except SchedulerClosed:
            assert fault.raised_in == "free"
            return True
    raise AssertionError("the scheduler never comes to an end")


def assert_as_alone(run):
    run.finish()
    assert run.told() == [told_alone(session) for session in run.sessions]


PLACES = {  # calls, and what they are calls of
    "engine": lambda run: [(run.engine.kv if name == "can_append" else run.engine.runner, name) for name in CALLS],
    "admission": lambda run: [(run.scheduler, "admission")],
    "step": lambda run: [(run.engine.decode_step, stage) for stage in ("place", "copy_blocks", "plan", "runner")],
    "pipeline": lambda run: [(run.engine.pipeline, name) for name in ("launch", "land")],
    "slots": lambda run: [(slot, name) for slot in run.engine.pipeline.ring.empty for name in ("write", "read")],
}


@pytest.mark.parametrize("parts", [BEST, LATE], ids=["in step", "late"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_in_any_call_loses_nothing(parts, place, when):
    """At call k for every k, while the step before is in flight, which lands first."""
    faults = []
    for k in count(1):
        run, fault = world(parts, OfflineScheduler if k % 2 else OnlineScheduler), FaultAt(k, when)
        for owner, name in PLACES[place](run):
            fault.wrap(owner, name)
        broken = run_with_fault(run, fault)
        if fault.raised_in is None:
            break
        faults.append(fault.raised_in)
        forgive(run.engine)
        if broken:
            assert run.engine.num_in_flight == 0
        else:
            assert_as_alone(run)
    assert {*faults} == {name for _, name in PLACES[place](run)}


@one_behind
@pytest.mark.parametrize("k", [2, 7])
def test_a_device_that_fails_for_good(parts, k):
    """No read succeeds any more: the step says so, and then nothing is in flight."""
    run, reads = world(parts), count(1)
    for slot in run.engine.pipeline.ring.empty:
        slot.read = partial(lambda read: read() if next(reads) < k else 1 / 0, slot.read)
    for _ in range(100):
        try:
            run.step()
        except ZeroDivisionError:
            assert run.engine.num_in_flight == 0
            assert {*run.scheduler.waiting} == {session for session in run.sessions if not session.finished}
            run.check()
            for session in run.sessions:
                run.scheduler.cancel(session)
            run.scheduler.take_new_tokens()
            forgive(run.engine)
            assert not run.scheduler.has_work
            assert_empty(run.engine)
            return
    raise AssertionError("nobody noticed")


# -- interrupts -----------------------------------------------------------------------------------------------------


def step_scene(parts, at):
    run = world(parts)
    for _ in range(at):
        run.step()

    def check(interrupted, new_tokens):
        run.check()
        assert {*run.scheduler.waiting, *run.scheduler.running} == {s for s in run.sessions if not s.finished}
        for session, token in new_tokens or []:
            run.got.setdefault(session, []).append(token)
        if interrupted:
            forgive(run.engine)  # a launch may have been told when the interrupt came
        assert_as_alone(run)

    return Scene(run.scheduler.step, check)


@one_behind
@pytest.mark.parametrize("at", [2, 5, 8, 11])
def test_steps_are_interrupted_at_any_line(parts, at):
    """Also while the host waits for the device, which does not stop."""
    assert strike_lines(partial(step_scene, parts, at), 8, at) == 8


def call_scene(parts, call):
    """Another call, with a step in flight: it is done, or nothing has changed."""
    run = world(parts)
    for _ in range(5):
        run.step()
    assert run.engine.num_in_flight == 1
    session = run.scheduler.running[0]
    made = []
    calls = {
        "fork": lambda: made.append(run.engine.fork(session)),
        "cancel": lambda: run.scheduler.cancel(session),
        "settle": run.engine.settle,
        "submit": lambda: run.submit(PROMPTS[0], asks()[0]),
    }

    def check(interrupted, _):
        run.engine.audit([*run.sessions, *made])
        for fork in made:
            run.add(fork)
        run.finish()
        for one in run.sessions:
            tokens, reason = told_alone(one)
            assert one.completion_ids == tokens[: len(one.completion_ids)]
            assert one.finish_reason == reason or (one is session and one.finish_reason == "cancelled")

    return Scene(calls[call], check)


@one_behind
@pytest.mark.parametrize("call", ["fork", "cancel", "settle", "submit"])
def test_a_call_is_interrupted_at_any_line(parts, call):
    assert strike_lines(partial(call_scene, parts, call), 8, call) == 8


# -- logits that are no numbers -----------------------------------------------------------------------------------


@one_behind
def test_nan_at_any_step_ends_one_session(parts):
    """In the prefill and after each token: it has the tokens before, the step in flight gives it none, others go on."""
    engine = make_engine(parts, model := SickModel(), max_batch_size=3)
    expected = [told_alone(session)[0] for session in world(parts).sessions]
    tried = 0
    for number, tokens in enumerate(expected):
        prompt = PROMPTS[FEW][number]
        for at, before in enumerate([prompt[-1], *tokens[:-1]]):
            model.sick = {(before, len(prompt) - 1 + at)}
            run = Run(engine)
            run.submit_all(PROMPTS[FEW], asks()[FEW])
            run.finish()
            for (made, reason), whole, prompt_of in zip(run.told(), expected, PROMPTS[FEW], strict=True):
                ends = [n for n in range(len(whole)) if told_before(prompt_of, whole, n) in model.sick]
                assert (made, reason) == ((whole[: ends[0]], "error") if ends else (whole, "length"))
            assert run.scheduler.failed == [s for s in run.scheduler.failed if s.finish_reason == "error"] != []
            tried += 1
    assert tried == sum(map(len, expected))


def told_before(prompt, tokens, n):
    """The token before token n, and its position."""
    return [*prompt, *tokens][len(prompt) + n - 1], len(prompt) + n - 1


# -- everything at once -------------------------------------------------------------------------------------------


def test_everything_at_once():
    """Seeded worlds; `python -m tests.support.fault_soak` plays as many as one likes."""
    counts = soak(0, 10)
    assert min(counts[event] for event in ("faults", "forks", "cancels", "preemptions", "stop", "error")) > 0


@one_behind
def test_a_prefix_that_is_discarded_leaves_no_second_entry_for_a_block_below_it(parts):
    """Two of a batch hit the same prefix, and one is NaN: the other one's blocks are each remembered once."""
    model = SickModel()
    engine, params = make_engine(parts, model), asks()[0]
    stem = [1, 2, 3, 4, 5, 6, 7, 8]
    run = Run(engine)
    run.submit([*stem, 9], params)
    run.finish()
    model.sick = {(11, 4)}
    bad, good = run.submit([*stem[:4], 11], params), run.submit([*stem, 12], params)
    run.finish()
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")
    entries = engine.prefix_cache.entries()
    assert len(set(entries)) == len(entries) == 2
    assert good.completion_ids == told_alone(good)[0]


@pytest.mark.parametrize("parts", [BEST, BEHIND], ids=["in step", "one behind"])
def test_a_sample_that_ended_in_a_landing_that_failed_does_not_wait(parts):
    """Its last token was taken; there was no place for it in the batch, so it had waited."""
    run = Run(make_engine(parts), max_batch_size=2)
    run.submit(PROMPTS[0], SamplingParams(1, stop_on_eos=False), 3)
    land = run.engine.runner.land

    def fails():
        land()
        raise ZeroDivisionError("planted")

    run.engine.runner.land = fails
    with pytest.raises(ZeroDivisionError):
        run.finish()
    run.engine.runner.land = land
    assert all(session.finished for session in run.samples)
    assert not [*run.scheduler.waiting, *run.scheduler.running]
    run.check()
