"""One step behind, and the same tokens: whatever ends, joins, forks or is preempted, and at whichever step."""

import random
from dataclasses import replace
from itertools import count

import pytest

from rosecourse import RequestError, SamplingParams
from tests.support.pipelines import (
    BEFORE,
    PROMPTS,
    Run,
    alone,
    asks,
    assert_empty,
    make_engine,
    one_behind,
    told_alone,
)

FEW = slice(2, 5)  # of the requests, where each step of a run is tried


def few(parts, stop=False, **config):
    """A run of a few requests; no step of it was made."""
    run = Run(make_engine(parts, **config))
    run.submit_all(PROMPTS[FEW], asks(stop=stop)[FEW])
    return run


def steps_of(run):
    return next(n for n in count() if not (run.scheduler.has_work and run.step() is None))


@one_behind
def test_the_host_is_one_step_behind_and_never_two(parts):
    run = few(parts)
    depths, steps = [], []
    while run.scheduler.has_work:
        run.step()
        depths.append(run.engine.num_in_flight)
        steps.append(run.scheduler.stats.decode_steps)
    assert set(depths) == {0, 1}
    # No step is launched for nobody: the longest request takes its first token from the prefill.
    assert steps[-1] == max(asks()[FEW], key=lambda params: params.max_new_tokens).max_new_tokens - 1
    assert depths[1:-1] == [1] * len(depths[1:-1])


@one_behind
def test_end_of_text_at_any_step(parts):
    """Every second token that somebody gets is the end of text once; the token too many is never seen."""
    full = [alone(tuple(prompt), params)[0] for prompt, params in zip(PROMPTS, asks(), strict=True)]
    for eos in sorted({token for tokens in full for token in tokens})[::2]:
        run = Run(make_engine(parts, max_batch_size=3))
        run.engine.eos_token_id = eos
        run.submit_all(params=asks(stop=True))
        run.finish()
        for (tokens, reason), whole in zip(run.told(), full, strict=True):
            expected = whole[: whole.index(eos) + 1] if eos in whole else whole
            assert (tokens, reason) == (expected, "stop" if eos in whole else "length")


@one_behind
def test_cancel_at_any_step(parts):
    """The one that is cancelled keeps what it had; the others do not notice."""
    for at in range(steps_of(few(parts))):
        for number in range(len(PROMPTS[FEW])):
            run = few(parts)
            for _ in range(at):
                run.step()
            session = run.sessions[number]
            had, ended = list(session.token_ids), session.finish_reason
            run.scheduler.cancel(session)
            assert (session.token_ids, session.finish_reason) == (had, ended or "cancelled")
            assert session.table is None
            run.check()
            run.finish()
            assert session.token_ids == had
            assert session.completion_ids == told_alone(session)[0][: len(session.completion_ids)]
            assert [told_alone(s) for s in run.sessions if s is not session] == [
                told for s, told in zip(run.sessions, run.told(), strict=True) if s is not session
            ]


@one_behind
def test_fork_at_any_step(parts):
    """The step in flight lands first: the fork goes on from all tokens that there are, and with other words too."""
    forked = refused = 0
    for at in range(1, steps_of(few(parts))):
        for number in (at % 3,):
            run = few(parts)
            for _ in range(at):
                run.step()
            parent = run.sessions[number]
            params = SamplingParams(max_new_tokens=14, temperature=1.0, seed=5, stop_on_eos=False)
            try:
                fork = run.engine.fork(parent, params)
            except RequestError:
                refused += 1
                assert parent.finished
            else:
                forked += 1
                assert not run.engine.is_in_flight(parent)
                fork.token_ids[-1] = 9
                known = tuple(fork.token_ids)
                run.add(fork)
            run.finish()
            assert run.told()[:3] == [told_alone(session) for session in run.sessions[:3]]
            for fork in run.sessions[3:]:
                left = replace(params, max_new_tokens=14 - len(known) + len(parent.prompt_ids))
                assert fork.token_ids == [*known, *alone(known, left)[0]]
    assert forked >= 4
    assert refused >= 1


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
