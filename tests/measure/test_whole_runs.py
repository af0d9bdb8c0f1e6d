"""Whatever turns requests into a figure refuses those that failed, by name (hazard 35); and what is whole passes."""

import re

import pytest
import torch

from rosecourse import (
    LESSONS,
    EngineConfig,
    InferenceEngine,
    OnlineScheduler,
    RequestFailed,
    RosecourseError,
    SamplingParams,
)
from rosecourse.measure.anatomy import decode_anatomies, decode_anatomy
from rosecourse.measure.compare import compare, compare_ladder
from rosecourse.measure.counters import count_step
from rosecourse.measure.rivals import time_pairs
from rosecourse.measure.workload import Request, Workload, require_whole, run_offline, run_scheduler, run_streaming
from tests.support.failing import cancels_one, sick_model
from tests.support.small_models import from_transformers

PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)
STOPS = SamplingParams(max_new_tokens=8)
WORKLOAD = Workload.of([(1, 2, 3), (4, 5), (6, 7, 8)], PARAMS)
RUNNERS = [run_scheduler, run_offline, run_streaming]


def engine_of(model, **config):
    settings = {"block_size": 4, "max_batch_size": 2, "prefix_cache": False} | config
    return InferenceEngine(model, EngineConfig(**settings))


WHOLE = [(PARAMS, [5] * 8, "length"), (STOPS, [5, 6, 0], "stop"), (STOPS, [5] * 7 + [0], "stop")]
FAILED = [
    (PARAMS, [5, 6, 0], "stop", "gave 3 of 8 tokens (stop)"),
    (STOPS, [5, 6, 7], "stop", "gave 3 of 8 tokens (stop)"),  # its last token is no end of text
    (PARAMS, [5, 6, 7], "error", "gave 3 of 8 tokens (error: its logits are NaN or infinite)"),
    (STOPS, [], "error", "gave 0 of 8 tokens (error: its logits are NaN or infinite)"),
    (STOPS, [5, 6, 7], "cancelled", "gave 3 of 8 tokens (cancelled)"),
    (PARAMS, [5] * 9, "length", "gave 9 of 8 tokens (length)"),  # one counted twice
]


def test_a_request_that_gave_all_is_whole():
    require_whole(*zip(*WHOLE, strict=True), eos_token_id=0)


@pytest.mark.parametrize(("asked", "token_ids", "reason", "words"), FAILED)
def test_a_request_that_gave_less_is_named(asked, token_ids, reason, words):
    failed = asked, token_ids, reason
    with pytest.raises(RequestFailed, match=re.escape(f"request 1 {words}: such a run gives no figure")):
        require_whole(*zip(WHOLE[0], failed, WHOLE[0], strict=True), eos_token_id=0)
    with pytest.raises(RequestFailed, match=r"request 0 gave .*, and 2 more of 4 failed: such a run gives no figure"):
        require_whole(*zip(failed, WHOLE[0], failed, failed, strict=True), eos_token_id=0)


# -- every way to a figure ----------------------------------------------------------------------------------------

FIGURES = {runner.__name__: lambda model, runner=runner: runner(engine_of(model), WORKLOAD) for runner in RUNNERS}
FIGURES |= {
    "compare": lambda model: compare(engine_of(model), engine_of(model), WORKLOAD, pairs=1, runner=run_streaming),
    "compare_ladder": lambda model: compare_ladder(model, WORKLOAD, 1, rungs=LESSONS[:2]),
    "time_pairs": lambda model: time_pairs(engine_of(model), [[1, 2, 3], [4, 5, 6]], PARAMS, pairs=1),
}
STEPS = {
    "decode_anatomy": lambda engine, sessions: decode_anatomy(engine, sessions, 12),
    "decode_anatomies": lambda engine, sessions: decode_anatomies({"one": engine}, {"one": sessions}, 3),
    "count_step": lambda engine, sessions: [count_step(engine, sessions) for _ in range(12)],
}


@pytest.mark.parametrize("figure", FIGURES)
def test_requests_that_fail_give_no_figure(small_model, monkeypatch, figure):
    """Hazard 35: a failed request is counted as if it were a result."""
    with pytest.raises(RequestFailed, match=r"request 0 gave \d of 8 tokens \(error: its logits are NaN or infinite\)"):
        FIGURES[figure](sick_model(small_model, 5))
    steps = cancels_one(monkeypatch, 3)
    with pytest.raises(RequestFailed, match=r"request \d gave \d of 8 tokens \(cancelled\)"):
        FIGURES[figure](small_model)
    assert len(steps) >= 3


def prefilled(engine):
    """Sessions that have room for many steps; with a sick model they have their first token."""
    params = SamplingParams(max_new_tokens=40, stop_on_eos=False)
    sessions = [engine.new_session(prompt, params) for prompt in ([1, 2, 3], [4, 5])]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


@pytest.mark.parametrize("figure", STEPS)
def test_steps_over_failed_sessions_give_no_figure(small_model, monkeypatch, figure):
    """A step over a session that has its tokens computes ones that nobody asked for."""
    engine = engine_of(sick_model(small_model, 7))
    with pytest.raises(RosecourseError, match=r"sessions \[0\] of the batch are NaN or infinite"):
        STEPS[figure](engine, prefilled(engine))
    engine = engine_of(small_model)
    sessions, land, steps = prefilled(engine), engine.land, []

    def ending():
        steps.append(land())
        if len(steps) == 4:
            sessions[1].finish_reason = "stop"
        return steps[-1]

    monkeypatch.setattr(engine, "land", ending)
    with pytest.raises(RequestFailed, match="session 1 has ended: a step over it gives no figure"):
        STEPS[figure](engine, sessions)
    assert len(steps) == 4


# -- what is whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_end_of_text_ends_what_was_to_stop_there(small_model, runner):
    """Also where it is the first token of a request's siblings, and of one with a single token."""
    engine = engine_of(small_model)
    first, *_ = runner(engine, WORKLOAD).completions
    engine.eos_token_id = first[3]
    assert runner(engine, Workload.of([(1, 2, 3)], STOPS)).completions == [first[: 1 + first.index(first[3])]]
    assert runner(engine, Workload.of([(1, 2, 3)], PARAMS)).completions == [first]
    if runner is not run_streaming:
        engine.eos_token_id = first[0]
        siblings = (PARAMS, STOPS, SamplingParams(max_new_tokens=1))
        run = runner(engine, Workload((Request((1, 2, 3), STOPS, siblings=siblings),)))
        assert [len(ids) for ids in run.completions] == [1, 8, 1, 1]
        assert {ids[0] for ids in run.completions} == {first[0]}
    engine.audit([])


def test_tokens_of_a_preempted_session_count_once(small_model):
    workload = Workload.of([(n, 5, 7) for n in range(1, 5)], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    roomy, dry = (run_scheduler(engine_of(small_model, max_batch_size=4, num_blocks=n), workload) for n in (99, 9))
    assert dry.stats.preemptions > 0 == roomy.stats.preemptions
    assert (dry.completions, dry.num_tokens) == (roomy.completions, 80)


def test_siblings_that_were_never_forked_are_missed(small_model):
    """Their request was cancelled before its prefill, and they were never made."""

    class Cancels(OnlineScheduler):
        def submit(self, session, siblings=()):
            super().submit(session, siblings)
            if siblings:
                self.cancel(session)

    requests = (Request((1, 2, 3), STOPS, siblings=(STOPS, STOPS)), Request((4, 5), PARAMS))
    with pytest.raises(RequestFailed, match=r"request 0 gave 0 of 8 tokens \(cancelled\)"):
        run_scheduler(engine_of(small_model), Workload(requests), Cancels)


def test_fewer_tokens_are_no_speedup_where_tokens_may_differ(small_pair, small_model):
    """In bfloat16 rounding may make other tokens, and so end a request sooner."""
    model = from_transformers(small_pair[0], small_model.tokenizer, "small", torch.bfloat16)
    before, after = engine_of(model), engine_of(model)
    after.eos_token_id = run_scheduler(before, WORKLOAD).completions[0][4]
    requests = tuple(Request(prompt, STOPS, arrival=1e-6) for prompt in WORKLOAD.prompts)
    with pytest.raises(RosecourseError, match="different tokens"):
        compare(before, after, Workload(requests), pairs=5)
