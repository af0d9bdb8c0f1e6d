"""Whatever turns requests into a figure refuses those that failed, by name (hazard 35); and what is whole passes."""

import re

import pytest
import torch

from rosecourse import (
    LESSONS,
    EngineConfig,
    InferenceEngine,
    RequestFailed,
    RosecourseError,
    SamplingParams,
)
from rosecourse.measure.anatomy import decode_anatomies, decode_anatomy
from rosecourse.measure.compare import compare, compare_ladder
from rosecourse.measure.counters import count_step
from rosecourse.measure.rivals import time_pairs
from rosecourse.measure.samples import Samples
from rosecourse.measure.workload import Request, Workload, require_whole, run_offline, run_scheduler, run_streaming
from rosecourse.models.load import from_transformers
from tests.support.failing import cancels_one, sick_model

PARAMS = SamplingParams(max_new_tokens=8, stop_on_eos=False)
STOPS = SamplingParams(max_new_tokens=8)
WORKLOAD = Workload.of([(1, 2, 3), (4, 5), (6, 7, 8)], PARAMS)
RUNNERS = [run_scheduler, run_offline, run_streaming]


def engine_of(model, **config):
    settings = {"block_size": 4, "max_batch_size": 2, "prefix_cache": False} | config
    return InferenceEngine(model, EngineConfig(**settings))


# -- the judge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "token_ids", "reason", "said"),
    [
        (PARAMS, [5] * 8, "length", ""),
        (STOPS, [5, 6, 0], "stop", ""),
        (STOPS, [5] * 7 + [0], "stop", ""),
        (PARAMS, [5, 6, 0], "stop", "gave 3 of 8 tokens (stop): such a run gives no figure"),
        (STOPS, [5, 6, 7], "stop", "gave 3 of 8 tokens (stop)"),  # its last token is no end of text
        (PARAMS, [5, 6, 7], "error", "gave 3 of 8 tokens (error: its logits are NaN or infinite): such a run"),
        (STOPS, [], "error", "gave 0 of 8 tokens (error: its logits are NaN or infinite)"),
        (STOPS, [5, 6, 7], "cancelled", "gave 3 of 8 tokens (cancelled)"),
        (PARAMS, [5] * 9, "length", "gave 9 of 8 tokens (length)"),  # one counted twice
    ],
)
def test_a_request_is_whole_or_said_not_to_be(asked, token_ids, reason, said):
    whole, answer = (PARAMS, [5] * 8, "length"), (asked, token_ids, reason)
    if not said:
        require_whole(*zip(answer, whole, strict=True), eos_token_id=0)
        return
    with pytest.raises(RequestFailed, match=re.escape(f"request 1 {said}")):
        require_whole(*zip(whole, answer, whole, strict=True), eos_token_id=0)
    with pytest.raises(RequestFailed, match=r"request 0 gave .*, and 2 more of 4 failed: such a run gives no figure"):
        require_whole(*zip(answer, whole, answer, answer, strict=True), eos_token_id=0)


# -- every way to a figure ----------------------------------------------------------------------------------------


def prefilled(engine, new=40):
    """Sessions that have room for many steps; with a sick model they have their first token."""
    params = SamplingParams(max_new_tokens=new, stop_on_eos=False)
    sessions = [engine.new_session(prompt, params) for prompt in ([1, 2, 3], [4, 5])]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


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


@pytest.mark.parametrize("position", [5, 0], ids=["later", "from the first token"])
@pytest.mark.parametrize("figure", FIGURES)
def test_no_figure_of_requests_that_became_nan(small_model, figure, position):
    """Hazard 35: a failed request is counted as if it were a result."""
    with pytest.raises(RequestFailed, match=r"request 0 gave \d of 8 tokens \(error: its logits are NaN or infinite\)"):
        FIGURES[figure](sick_model(small_model, position))


@pytest.mark.parametrize("figure", FIGURES)
def test_no_figure_of_requests_that_were_cancelled(small_model, monkeypatch, figure):
    steps = cancels_one(monkeypatch, 3)
    with pytest.raises(RequestFailed, match=r"request \d gave \d of 8 tokens \(cancelled\)"):
        FIGURES[figure](small_model)
    assert len(steps) >= 3


@pytest.mark.parametrize("figure", STEPS)
def test_no_figure_of_steps_over_nan(small_model, figure):
    engine = engine_of(sick_model(small_model, 7))
    sessions = prefilled(engine)
    with pytest.raises(RosecourseError, match=r"sessions \[0\] of the batch are NaN or infinite"):
        STEPS[figure](engine, sessions)


@pytest.mark.parametrize("ended", ["cancelled", "length", "stop"])
@pytest.mark.parametrize("figure", STEPS)
def test_no_figure_of_steps_over_sessions_that_have_ended(small_model, monkeypatch, figure, ended):
    """A step over a session that has its tokens computes ones that nobody asked for."""
    engine = engine_of(small_model)
    sessions = prefilled(engine)
    land, steps = engine.land, []

    def ending():
        landed = land()
        steps.append(landed)
        if len(steps) == 4:
            sessions[1].finish_reason = ended
        return landed

    monkeypatch.setattr(engine, "land", ending)
    with pytest.raises(RequestFailed, match="session 1 has ended: a step over it gives no figure"):
        STEPS[figure](engine, sessions)
    assert len(steps) == 4


# -- what is whole ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_end_of_text_ends_a_request_that_was_to_stop_there(small_model, runner):
    engine = engine_of(small_model)
    first, *_ = runner(engine, WORKLOAD).completions
    engine.eos_token_id = first[3]
    run = runner(engine, Workload.of([(1, 2, 3)], STOPS))
    assert run.completions == [first[: 1 + first.index(first[3])]]
    assert runner(engine, Workload.of([(1, 2, 3)], PARAMS)).completions == [first]


def test_tokens_count_once_though_their_session_was_preempted(small_model):
    workload = Workload.of([(n, 5, 7) for n in range(1, 5)], SamplingParams(max_new_tokens=20, stop_on_eos=False))
    roomy = run_scheduler(engine_of(small_model, max_batch_size=4), workload)
    run = run_scheduler(engine_of(small_model, max_batch_size=4, num_blocks=9), workload)
    assert run.stats.preemptions > 0 == roomy.stats.preemptions
    assert run.completions == roomy.completions
    assert run.num_tokens == 80
    assert Samples("all", [run]).throughputs == pytest.approx([80 / run.total_seconds])


def test_siblings_that_were_never_forked_are_missed(small_model):
    """Their request was cancelled before its prefill, and they were never made."""
    engine = engine_of(small_model)

    def cancels(waiting):
        if waiting[0].siblings:
            waiting[0].owner().cancel(waiting[0])
        return 0

    requests = (Request((1, 2, 3), STOPS, siblings=(STOPS, STOPS)), Request((4, 5), PARAMS))
    with pytest.raises(RequestFailed, match=r"request 0 gave 0 of 8 tokens \(cancelled\)"):
        run_scheduler(engine, Workload(requests, admission=cancels))


@pytest.mark.parametrize("runner", [run_scheduler, run_offline])
def test_siblings_end_with_the_end_of_text_each_by_itself(small_model, runner):
    """Also where it is the first token of the request, and of one with a single token."""
    engine = engine_of(small_model)
    first = engine.eos_token_id = run_scheduler(engine, WORKLOAD).completions[0][0]
    single = SamplingParams(max_new_tokens=1)
    run = runner(engine, Workload((Request((1, 2, 3), STOPS, siblings=(PARAMS, STOPS, single)),)))
    assert [len(ids) for ids in run.completions] == [1, 8, 1, 1]
    assert {ids[0] for ids in run.completions} == {first}
    engine.audit([])


def test_before_and_after_make_as_many_tokens_even_where_tokens_may_differ(small_pair, small_model):
    """In bfloat16 rounding may make other tokens, and so end a request sooner: less work is no speedup."""
    model = from_transformers(small_pair[0], small_model.tokenizer, "small", torch.bfloat16)
    before, after = engine_of(model), engine_of(model)
    tokens = run_scheduler(before, WORKLOAD).completions[0]
    after.eos_token_id = tokens[4]
    requests = tuple(Request(prompt, STOPS, arrival=1e-6) for prompt in WORKLOAD.prompts)
    with pytest.raises(RosecourseError, match="different tokens"):
        compare(before, after, Workload(requests), pairs=5)


def test_the_engine_makes_all_tokens_that_transformers_makes(small_model):
    """`transformers` goes on behind the end of text: fewer tokens of ours would be less work."""
    engine = engine_of(small_model)
    engine.eos_token_id = run_scheduler(engine, WORKLOAD).completions[0][3]
    with pytest.raises(RequestFailed, match=r"request 0 gave 4 of 8 tokens \(stop\)"):
        time_pairs(engine, [[1, 2, 3], [4, 5, 6]], STOPS, pairs=1)


def test_tokens_that_differed_in_one_run_are_told(small_model, monkeypatch):
    """Not only those of the last."""
    engine = engine_of(small_model)
    real, calls = engine.generate, []

    def generate(prompts, params):
        results = real(prompts, params)
        calls.append(results)
        if len(calls) == 2:
            results[0].token_ids[-1] += 1
        return results

    monkeypatch.setattr(engine, "generate", generate)
    assert not time_pairs(engine, [[1, 2, 3]], PARAMS, pairs=3)[2]
    assert len(calls) == 4
