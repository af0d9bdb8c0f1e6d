"""An exception at any point of a step, wherever it comes from: no session, token or block is lost or doubled."""

from functools import partial
from itertools import count

import pytest
import torch

from rosecourse import (
    BASELINE,
    BEST,
    BlockError,
    ConfigError,
    OfflineScheduler,
    OnlineScheduler,
    SamplingParams,
    SchedulerClosed,
    lesson,
)
from tests.support.failing import FaultAt, Planted, spoil
from tests.support.late_device import BEHIND, LATE, forgive
from tests.support.oracles import hf_greedy
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
from tests.support.scheduling import check, run, submit
from tests.support.scheduling import make_engine as make_small_engine

KEEPS = {("after", "begin"), ("after", "land")}  # who has done its work and raises keeps the tokens


def world(parts, kind=OnlineScheduler):
    """Five requests, one of a single token, over a pool that makes them preempt each other."""
    play = Run(make_engine(parts, num_blocks=8, max_batch_size=3), kind, prefill_max_batch_size=2)
    play.submit_all(PROMPTS[1:6], asks()[1:6])
    return play


def run_with_fault(play, fault):
    """To the end, or until the scheduler says that it is broken; returns which."""
    for _ in range(200):
        if not play.scheduler.has_work:
            return False
        try:
            play.step()
        except Planted:
            if fault.raised_in != "free":
                assert {*play.scheduler.waiting, *play.scheduler.running} == {s for s in play.samples if not s.finished}
                play.check()
            if (fault.when, fault.raised_in) in KEEPS:
                play.kept = set(play.sessions)
        except SchedulerClosed:
            assert fault.raised_in == "free"
            return True
    raise AssertionError("the scheduler never comes to an end")


CALLS = ["reserve", "prefill", "can_append", "launch", "land", "begin", "free"]
PLACES = {  # calls, and what they are calls of
    "engine": lambda play: [(play.engine.kv if name == "can_append" else play.engine.runner, name) for name in CALLS],
    "admission": lambda play: [(play.scheduler, "admission")],
    "step": lambda play: [(play.engine.decode_step, stage) for stage in ("place", "copy_blocks", "plan", "runner")],
    "pipeline": lambda play: [(play.engine.pipeline, name) for name in ("launch", "land")],
    "slots": lambda play: [(slot, name) for slot in play.engine.pipeline.ring.empty for name in ("write", "read")],
    "layers": lambda play: [(play.engine.decode_step, "kv_append")],
    "tokens": lambda play: [(play.engine.kv, "append_token")],
    "blocks": lambda play: [(play.engine.kv, "allocate_block")],
}
CASES = [(parts, place, when) for parts in (BEST, LATE) for place in list(PLACES)[:5] for when in ("before", "after")]
CASES += [
    (parts, place, when)
    for parts, place in ((lesson("061").after, "layers"), (BASELINE, "tokens"))
    for when in ("before", "after")
]
CASES += [(lesson("061").after, "blocks", "before")]  # a block that nobody gets is lost


@pytest.mark.parametrize(("parts", "place", "when"), CASES)
def test_a_fault_in_any_call_loses_nothing(parts, place, when):
    """At call k for every k: while the step before is in flight, which lands first; and between two layers."""
    faults = []
    for k in count(1):
        play, fault = world(parts, OfflineScheduler if k % 2 else OnlineScheduler), FaultAt(k, when)
        for owner, name in PLACES[place](play):
            fault.wrap(owner, name)
        broken = run_with_fault(play, fault)
        if fault.raised_in is None:
            break
        faults.append(fault.raised_in)
        forgive(play.engine)
        if broken:
            assert play.engine.num_in_flight == 0
        else:
            play.finish()
            assert play.told() == [told_alone(session) for session in play.sessions]
    assert {*faults} == {name for _, name in PLACES[place](play)}


@one_behind
@pytest.mark.parametrize("k", [2, 7])
def test_a_device_that_fails_for_good(parts, k):
    """No read succeeds any more: the step says so, and then nothing is in flight."""
    play, reads = world(parts), count(1)
    for slot in play.engine.pipeline.ring.empty:
        slot.read = partial(lambda read: read() if next(reads) < k else 1 / 0, slot.read)
    with pytest.raises(ZeroDivisionError):
        play.finish()
    assert play.engine.num_in_flight == 0
    assert {*play.scheduler.waiting} == {session for session in play.sessions if not session.finished}
    play.check()
    for session in play.sessions:
        play.scheduler.cancel(session)
    play.scheduler.take_new_tokens()
    forgive(play.engine)
    assert not play.scheduler.has_work
    assert_empty(play.engine)


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


def test_tokens_made_before_a_fault_come_with_the_next_step(small_model):
    """A prefill has given the only token of a request when the decode of another one fails."""
    scheduler = OnlineScheduler(make_small_engine(small_model))
    (long,) = submit(scheduler, [5])
    scheduler.step()
    (short,) = submit(scheduler, [3], new=1)
    fault = FaultAt(1, "before")
    fault.wrap(scheduler.runner, "launch")
    with pytest.raises(Planted):
        scheduler.step()
    assert short.finish_reason == "length"
    scheduler.cancel(long)
    assert scheduler.has_work
    assert scheduler.step() == [(short, short.completion_ids[0])]
    assert not scheduler.has_work


def test_a_broken_cache_breaks_the_scheduler_for_good(small_model):
    """Blocks freed behind its back: the step that notices raises, and so does each one after it, saying why."""
    scheduler = OnlineScheduler(make_small_engine(small_model))
    sessions = submit(scheduler, [5, 6], new=2)
    scheduler.step()
    scheduler.engine.kv.free(sessions[0].block_ids_per_layer)
    scheduler.runner.launch = lambda *_: 1 / 0
    with pytest.raises(BlockError, match="freed twice"):
        scheduler.step()
    for _ in range(2):
        with pytest.raises(SchedulerClosed, match=r"could not be given back \(BlockError: .*: make a new engine") as e:
            scheduler.step()
        assert isinstance(e.value.__cause__, BlockError)


def from_token(session, after):
    """Whether a session is this one, and has got so many tokens."""
    return lambda other: other is session and len(session.completion_ids) >= after


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_session_with_nan_logits_ends_alone(small_model, after, temperature, value):
    """In prefill or in decode: it gets no token and gives its blocks back; its neighbours go on as without it."""

    def play(spoiled):
        scheduler = OnlineScheduler(make_small_engine(small_model, prefix_cache=False))
        sessions = submit(scheduler, [4, 7, 5], temperature=temperature)
        if spoiled:
            spoil(scheduler.engine, from_token(sessions[1], after), value)
        got = run(scheduler)
        assert [got.get(s, []) for s in sessions] == [s.completion_ids for s in sessions]
        assert [len(s.times.tokens) for s in sessions] == [len(s.completion_ids) for s in sessions]
        assert scheduler.engine.kv.num_available() == scheduler.engine.kv.num_blocks
        assert scheduler.failed == [sessions[1]] * spoiled
        return [s.completion_ids for s in sessions], [s.finish_reason for s in sessions]

    (first, second, third), _ = play(spoiled=False)
    assert play(spoiled=True) == ([first, second[:after], third], ["length", "error", "length"])


@pytest.mark.parametrize("answer", [2, -1, None, "0", 0.0, True])
def test_an_admission_policy_that_names_nobody_is_told_so(small_pair, answer):
    """Nobody is lost: not those admitted before in the same step, and not those who wait."""
    hf, model = small_pair
    answers = iter([0, answer])
    scheduler = OnlineScheduler(make_small_engine(model), admission=lambda waiting: next(answers, 0))
    sessions = submit(scheduler, [3, 4, 5], new=4)
    with pytest.raises(ConfigError, match=rf"policy returned {answer!r}: it must return 0 to 1, the number of"):
        scheduler.step()
    check(scheduler)
    assert list(scheduler.waiting) == sessions
    run(scheduler)
    assert [s.completion_ids for s in sessions] == hf_greedy(hf, [s.prompt_ids for s in sessions], 4)
