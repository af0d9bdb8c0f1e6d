"""An exception at any point of a step, wherever it comes from: no session, token or block is lost or doubled."""

from itertools import count

import pytest
import torch

from rosecourse import BASELINE, BlockError, ConfigError, OnlineScheduler, SchedulerClosed, lesson
from tests.support.failing import spoil
from tests.support.oracles import hf_greedy, prompts_of
from tests.support.scheduling import check, make_engine, run, submit


class Planted(Exception):
    """A fault of ours."""


class FaultAt:
    """Raises in the k-th call of what it wraps: before the call has done anything, or after it has done all."""

    def __init__(self, k, when):
        self.k, self.when = k, when
        self.calls = 0
        self.raised_in = None

    def wrap(self, owner, name):
        real = getattr(owner, name)

        def call(*args, **kwargs):
            self.calls += 1
            mine = self.calls == self.k
            if mine:
                self.raised_in = name
            if mine and self.when == "before":
                raise Planted(name)
            result = real(*args, **kwargs)
            if mine:
                raise Planted(name)
            return result

        setattr(owner, name, call)


def run_with_fault(scheduler, fault, sessions):
    """Step to the end or until the scheduler says that it is broken; returns the tokens by session, and which."""
    got = {session: [] for session in sessions}
    for _ in range(200):
        if not scheduler.has_work:
            return got, False
        try:
            for session, token_id in scheduler.step():
                got[session].append(token_id)
        except Planted:
            if fault.raised_in != "free":
                live = {*scheduler.waiting, *scheduler.running}
                assert live == {session for session in sessions if not session.finished}
                check(scheduler)
        except SchedulerClosed:
            assert fault.raised_in == "free"
            return got, True
    raise AssertionError("the scheduler never comes to an end")


@pytest.mark.parametrize(
    ("parts", "name", "when"),
    [
        (BASELINE, "append_token", "before"),
        (BASELINE, "append_token", "after"),
        (lesson("061").after, "allocate_block", "before"),
        (lesson("061").after, "write", "before"),
        (lesson("061").after, "write", "after"),
    ],
)
def test_a_decode_step_that_breaks_off_between_two_layers_is_computed_again(small_pair, parts, name, when):
    """Some layers have got the token and others have not: no such block is read again."""
    hf, model = small_pair
    lengths, new = [4, 7, 5], 6
    expected = hf_greedy(hf, prompts_of(lengths, 211), new)
    for k in count(1):
        engine = make_engine(model, parts, num_blocks=12, prefix_cache=False)
        scheduler = OnlineScheduler(engine)
        sessions = submit(scheduler, lengths, new)
        fault = FaultAt(k, when)
        fault.wrap(engine.decode_step.kv_append if name == "write" else engine.kv, name)
        got, broken = run_with_fault(scheduler, fault, sessions)
        if fault.raised_in is None:
            break
        assert not broken
        assert [got[s] for s in sessions] == expected
        assert engine.kv.num_available() == 12
    assert k > 15  # three layers, five steps


def test_tokens_made_before_a_fault_come_with_the_next_step(small_model):
    """A prefill has given the only token of a request when the decode of another one fails."""
    scheduler = OnlineScheduler(make_engine(small_model))
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


def test_a_fork_lives_on_after_a_fault(small_pair):
    """It has lost the blocks that it shared; from its tokens they are computed anew."""
    hf, model = small_pair
    scheduler = OnlineScheduler(make_engine(model, prefix_cache=False))
    (parent,) = submit(scheduler, [6], new=9)
    scheduler.step()
    fork = scheduler.engine.fork(parent)
    fork.token_ids[-1] = 7
    known = list(fork.token_ids)
    scheduler.submit(fork)
    scheduler.step()
    fault = FaultAt(1, "after")
    fault.wrap(scheduler.runner, "launch")
    with pytest.raises(Planted):
        scheduler.step()
    assert list(scheduler.waiting) == [parent, fork]
    run(scheduler)
    assert parent.completion_ids == hf_greedy(hf, [parent.prompt_ids], 9)[0]
    assert fork.token_ids[len(known) :] == hf_greedy(hf, [known], 8)[0]


def test_a_broken_cache_breaks_the_scheduler_for_good(small_model):
    """Blocks freed behind its back: the step that notices raises, and so does each one after it, saying why."""
    scheduler = OnlineScheduler(make_engine(small_model))
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


# -- logits that are no numbers -----------------------------------------------------------------------------------


def from_token(session, after):
    """Whether a session is this one, and has got so many tokens."""
    return lambda other: other is session and len(session.completion_ids) >= after


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_session_with_nan_logits_ends_alone(small_model, after, temperature, value):
    """In prefill or in decode: it gets no token and gives its blocks back; its neighbours go on as without it."""

    def play(spoiled):
        scheduler = OnlineScheduler(make_engine(small_model, prefix_cache=False))
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


def test_a_batch_of_nothing_but_nan_ends(small_model):
    scheduler = OnlineScheduler(make_engine(small_model, prefix_cache=False))
    sessions = submit(scheduler, [4, 7])
    for session in sessions:
        spoil(scheduler.engine, from_token(session, 2))
    run(scheduler)
    assert [(s.finish_reason, len(s.completion_ids)) for s in sessions] == [("error", 2)] * 2
    assert scheduler.engine.kv.num_available() == scheduler.engine.kv.num_blocks


# -- admission policies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [2, -1, None, "0", 0.0, True])
def test_an_admission_policy_that_names_nobody_is_told_so(small_pair, answer):
    """Nobody is lost: not those admitted before in the same step, and not those who wait."""
    hf, model = small_pair
    answers = iter([0, answer])
    scheduler = OnlineScheduler(make_engine(model), admission=lambda waiting: next(answers, 0))
    sessions = submit(scheduler, [3, 4, 5], new=4)
    with pytest.raises(ConfigError, match=rf"policy returned {answer!r}: it must return 0 to 1, the number of"):
        scheduler.step()
    check(scheduler)
    assert list(scheduler.waiting) == sessions
    run(scheduler)
    assert [s.completion_ids for s in sessions] == hf_greedy(hf, [s.prompt_ids for s in sessions], 4)
