"""How samples of a prompt end: by themselves, with NaN, cancelled, interrupted, or refused before they begin."""

from dataclasses import replace

import pytest

from rosecourse import (
    ConfigError,
    OnlineScheduler,
    RequestError,
    SamplingParams,
    lesson,
)
from tests.support.interrupts import Scene, strike_lines
from tests.support.oracles import prompts_of
from tests.support.samples import (
    GREEDY,
    KINDS,
    RUNGS,
    SAMPLED,
    alone,
    assert_all_blocks_are_back,
    completions,
    spoil_prefills,
    submit,
)
from tests.support.scheduling import check, make_engine, run

# -- ends ---------------------------------------------------------------------------------------------------------


@KINDS
def test_samples_of_one_token_end_with_the_prefill(small_model, kind):
    prompts = prompts_of([5, 8], 211)
    params = replace(SAMPLED, max_new_tokens=1)
    scheduler = kind(make_engine(small_model))
    sessions = submit(scheduler, prompts, params, 9)
    run(scheduler)
    assert scheduler.stats.decode_steps == 0
    assert completions(sessions) == alone(small_model, prompts, params, 9)
    assert_all_blocks_are_back(scheduler.engine)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_sample_stops_with_the_end_of_text_by_itself(small_model, params):
    """At the first token too."""
    engine = make_engine(small_model, max_batch_size=3)
    (prompt,) = prompts_of([6], 211)
    full = alone(small_model, [prompt], params, 8)
    for eos in {full[0][0], full[1][1], full[2][4]}:
        engine.eos_token_id = eos
        found = engine.generate(prompt, replace(params, stop_on_eos=True), n=8)
        for ids, generation in zip(full, found, strict=True):
            stops = eos in ids
            assert generation.token_ids == (ids[: ids.index(eos) + 1] if stops else ids)
            assert generation.finish_reason == ("stop" if stops else "length")
        assert_all_blocks_are_back(engine)


@RUNGS
def test_logits_of_nan_end_all_samples_of_that_prompt(small_model, monkeypatch, rung):
    engine = make_engine(small_model, rung.after, max_batch_size=16)
    spoil_prefills(engine, monkeypatch, first_token=9)
    prompts = [[9] * 6, *prompts_of([5], 211), [9, 1]]
    scheduler = OnlineScheduler(engine)
    sessions = submit(scheduler, prompts, SAMPLED, 3)
    run(scheduler)
    for bad in (sessions[0], sessions[2]):
        assert [(s.finish_reason, s.completion_ids, s.times.tokens) for s in bad.samples] == [("error", [], [])] * 3
    assert set(scheduler.failed) == {*sessions[0].samples, *sessions[2].samples}
    assert [s.completion_ids for s in sessions[1].samples] == alone(small_model, prompts[1:2], SAMPLED, 3, rung.after)
    assert_all_blocks_are_back(engine)
    reasons = [g.finish_reason for g in engine.generate(prompts[:2], SAMPLED, n=2)]
    assert reasons == ["error", "error", "length", "length"]


# -- cancelled, interrupted, failed -------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "after_steps"), [(0, 1), (0, 5), (2, 2), (4, 1), (5, 2)])
def test_a_sample_is_cancelled_by_itself(small_model, number, after_steps):
    """The one that was prefilled, one that runs, one that waits for a place."""
    prompts = prompts_of([5], 211)
    scheduler = OnlineScheduler(make_engine(small_model, max_batch_size=4))
    (session,) = submit(scheduler, prompts, SAMPLED, 6)
    for _ in range(after_steps):
        scheduler.step()
    cancelled = session.samples[number]
    scheduler.cancel(cancelled)
    check(scheduler)
    run(scheduler)
    expected = alone(small_model, prompts, SAMPLED, 6)
    expected[number] = expected[number][: len(cancelled.completion_ids)]
    assert completions([session]) == expected
    assert cancelled.finish_reason == "cancelled"
    assert_all_blocks_are_back(scheduler.engine)


def stepping_scene(model, parts, steps, expected):
    """An interrupt in a step; all samples have their tokens afterwards, each returned once."""
    prompts = prompts_of([5, 4], 211)
    scheduler = OnlineScheduler(make_engine(model, parts, num_blocks=10))
    sessions = submit(scheduler, prompts, replace(SAMPLED, max_new_tokens=4), 4)
    made = {}

    def take(new_tokens):
        for session, token_id in new_tokens:
            made.setdefault(session, []).append(token_id)

    for _ in range(steps):
        take(scheduler.step())

    def finish(interrupted, result):
        scheduler.audit()
        take(result or [])
        for session, token_ids in run(scheduler).items():
            made.setdefault(session, []).extend(token_ids)
        assert completions(sessions) == expected
        assert [made[sample] for session in sessions for sample in session.samples] == expected
        assert_all_blocks_are_back(scheduler.engine)

    return Scene(scheduler.step, finish)


@pytest.mark.parametrize("number", ["035", "071"])
@pytest.mark.parametrize("steps", [0, 1])
def test_an_interrupt_in_a_step_loses_no_sample(small_model, number, steps):
    parts = lesson(number).after
    expected = alone(small_model, prompts_of([5, 4], 211), replace(SAMPLED, max_new_tokens=4), 4, parts)
    assert strike_lines(lambda: stepping_scene(small_model, parts, steps, expected), 25, seed=(number, steps)) == 25


# -- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("siblings", "error", "message"),
    [
        ("two", ConfigError, "siblings is 'two': give a list of SamplingParams"),
        (3, ConfigError, "siblings is 3: give a list of SamplingParams"),
        ([GREEDY, None], ConfigError, "each of the siblings is None: give an object of type SamplingParams"),
        ([SamplingParams(max_new_tokens=96)], RequestError, "max_new_tokens is 96: after a prompt of"),
    ],
)
def test_samples_that_cannot_be_served_are_refused_before_anything_changes(small_model, siblings, error, message):
    scheduler = OnlineScheduler(make_engine(small_model))
    session = scheduler.engine.new_session([1, 2, 3], GREEDY)
    with pytest.raises(error, match=message):
        scheduler.submit(session, siblings)
    assert not scheduler.has_work
    scheduler.submit(session, [GREEDY])
    run(scheduler)
    assert len(session.samples) == 2
