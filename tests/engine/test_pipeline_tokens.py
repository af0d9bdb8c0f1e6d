"""One step behind, and the same tokens: whatever ends, joins, forks or is preempted, and at whichever step."""

import random
from dataclasses import replace
from itertools import count

import pytest

from rosecourse import OfflineScheduler, OnlineScheduler, RequestError, SamplingParams
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

pytestmark = pytest.mark.grid

KINDS = pytest.mark.parametrize("kind", [OnlineScheduler, OfflineScheduler])
FEW = slice(2, 5)  # of the requests, where each step of a run is tried


def few(parts, stop=False, **config):
    """A run of a few requests; no step of it was made."""
    run = Run(make_engine(parts, **config))
    run.submit_all(PROMPTS[FEW], asks(stop=stop)[FEW])
    return run


def steps_of(run):
    return next(n for n in count() if not (run.scheduler.has_work and run.step() is None))


@one_behind
@KINDS
@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_mixed_lengths(parts, kind, batch):
    """Also the order in which sessions get their tokens and end."""
    run = Run(make_engine(parts, max_batch_size=batch), kind)
    sessions = run.submit_all()
    run.finish()
    assert run.told() == [told_alone(session) for session in sessions]


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
@pytest.mark.parametrize("batch", [1, 3])
def test_end_of_text_at_any_step(parts, batch):
    """Each token that somebody gets is the end of text once; the token too many is never seen."""
    full = [alone(tuple(prompt), params)[0] for prompt, params in zip(PROMPTS, asks(), strict=True)]
    for eos in sorted({token for tokens in full for token in tokens}):
        run = Run(make_engine(parts, max_batch_size=batch))
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
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fork_at_any_step(parts, temperature):
    """The step in flight lands first: the fork goes on from all tokens that there are, and with other words too."""
    forked = refused = 0
    for at in range(1, steps_of(few(parts))):
        for number in range(len(PROMPTS[FEW])):
            run = few(parts)
            for _ in range(at):
                run.step()
            parent = run.sessions[number]
            params = SamplingParams(max_new_tokens=14, temperature=temperature, seed=5, stop_on_eos=False)
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
    assert forked >= 12
    assert refused >= 4


@one_behind
def test_forks_of_forks_are_decoded_together(parts):
    """All in flight at a time, in blocks that they share and copy."""
    run = Run(make_engine(parts, max_batch_size=8))
    parent = run.submit(PROMPTS[2], SamplingParams(max_new_tokens=14, stop_on_eos=False))
    family = [parent]
    for word in (7, 8, 9):
        run.step()
        run.step()
        family.append(run.engine.fork(family[-1]))
        family[-1].token_ids[-1] = word
        run.add(family[-1])
    known = [len(PROMPTS[2]), *(run.known[fork] for fork in family[1:])]
    run.finish()
    for session, had in zip(family, known, strict=True):
        left = SamplingParams(max_new_tokens=len(session.token_ids) - had, stop_on_eos=False)
        assert session.token_ids[had:] == alone(tuple(session.token_ids[:had]), left)[0]


@one_behind
@KINDS
@pytest.mark.parametrize("batch", [2, 4])
def test_several_samples(parts, kind, batch):
    run = Run(make_engine(parts, max_batch_size=batch), kind)
    for prompt, params in zip(PROMPTS[:4], asks([6, 1, 9, 2]), strict=True):
        run.submit(prompt, replace(params, temperature=1.0), n=3)
    run.finish()
    for session in run.sessions:
        assert len(session.samples) == 3
        for sample in session.samples:
            assert (sample.completion_ids, sample.finish_reason) == told_alone(sample)


@one_behind
@KINDS
@pytest.mark.parametrize("num_blocks", [6, 7, 9])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemption(parts, kind, num_blocks, prefix_cache):
    run = Run(make_engine(parts, num_blocks=num_blocks, prefix_cache=prefix_cache), kind)
    new = [12 - len(prompt) // 2 for prompt in PROMPTS]
    sessions = run.submit_all(params=asks(new))
    run.finish()
    assert run.scheduler.stats.preemptions > 0
    assert run.told() == [told_alone(session) for session in sessions]


@one_behind
def test_prefix_hits(parts):
    """Prompts that begin alike, one after another: those that come later compute less, while others are in flight."""
    stem = [1, 2, 3, 4, 5, 6, 7, 8]
    run = Run(make_engine(parts, max_batch_size=3))
    cached = []
    real = run.engine.kv.allocate
    run.engine.kv.allocate = lambda tokens, shared=(): cached.append(len(shared)) or real(tokens, shared)
    for number in range(9):
        run.submit([*stem, 11, number + 20][number % 3 :], asks()[number % 8])
    run.finish()
    assert cached == [0, 0, 0, 2, 2, 1, 2, 2, 1]
    assert run.told() == [told_alone(session) for session in run.sessions]


@one_behind
@pytest.mark.parametrize("seed", range(12))
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
@pytest.mark.parametrize("n", [1, 3])
def test_generate(parts, n):
    engine, before = make_engine(parts, max_batch_size=3), make_engine(BEFORE, max_batch_size=3)
    for stop in (False, True):
        made, expected = (each.generate(PROMPTS, asks(stop=stop), n=n) for each in (engine, before))
        assert made == expected
        assert_empty(engine)


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
