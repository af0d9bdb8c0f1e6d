"""The steps of a runner: what a graph may not freeze, what the host reads, and steps that are stopped."""

import pytest
import torch

from rosecourse import LogitsError, SamplingParams
from rosecourse.decode.rows import View
from rosecourse.decode.runner import buckets_up_to
from rosecourse.lab.checking.cpu_runners import CPUGraphRunner
from tests.decode.runners import FIXED, KINDS, engine_of, random_traffic, sessions_of, step

# -- what may not be frozen -------------------------------------------------------------------------------------------


def frozen(view, name):
    """The same rows, with one column as it was at the capture."""
    inputs, asked = view.inputs, view.metadata
    if name in ("token_ids", "context_lens", "block_tables"):
        inputs = type(inputs)(**{**inputs.__dict__, name: getattr(inputs, name).clone()})
    elif name == "live":
        return View(inputs, view.live.clone(), asked)
    else:
        asked = asked._replace(**{name: getattr(asked, name).clone()})
    return View(inputs, view.live, asked)


class Freezing(CPUGraphRunner):
    column = ""

    def _capture(self, bucket, sampled):
        rows = self.work.rows
        view = rows.view(bucket)
        rows.views[bucket] = frozen(view, self.column) if self.column else view
        try:
            super()._capture(bucket, sampled)
        finally:
            rows.views[bucket] = view


COLUMNS = ("token_ids", "context_lens", "block_tables", "live", "temperature", "top_k", "top_p", "keys")


@pytest.mark.parametrize("column", ["", *COLUMNS])
def test_a_column_frozen_at_the_capture_makes_other_tokens(small_model, column):
    """The capture comes with one set of sessions, the tokens that are compared with others in the same rows."""

    def tokens(parts):
        engine = engine_of(small_model, parts)
        made = []
        for seed, temperature, top_k, top_p in ((1, 0.2, 2, 0.3), (5, 3.0, 0, 1.0), (9, 3.0, 0, 0.4), (9, 3.0, 3, 1.0)):
            params = SamplingParams(12, temperature, top_k, top_p, seed, stop_on_eos=False)
            sessions = [engine.new_session([seed + n] * (3 + n), params) for n in range(4 if seed == 5 else 3)]
            engine.take_tokens(sessions, engine.prefill(sessions))
            for _ in range(8):
                step(engine, sessions)
            made.append([session.completion_ids for session in sessions])
            for session in sessions:
                engine.free(session)
        return made

    runner = type("Runner", (Freezing,), {"column": column})
    try:
        found = tokens(FIXED.with_(runner=runner))
    except (RuntimeError, LogitsError):  # a position past its table, or a block that nobody has filled
        assert column in ("context_lens", "block_tables")
    else:
        assert (found == tokens(KINDS["065"])) is (column == "")


@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_the_cache_and_the_rows_stay_where_they_are(small_model, kind):
    """A graph has recorded their addresses: nothing that happens to an engine may make them anew."""
    engine = engine_of(small_model, KINDS[kind])
    rows, kv, runner = engine.decode_step.rows, engine.kv, engine.decode_step.runner

    greedy = [(size, False) for size in buckets_up_to(11)] if kind == "graphs" else []

    def places():
        views = [tensor for size in buckets_up_to(11) for tensor in tensors_of(rows.view(size))]
        kept = [made for key in greedy for made in runner.outcomes[key]]
        each = [kv.keys, kv.values, *kv.k_layers, *kv.v_layers, rows.state, *views, *kept]
        return [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in each]

    before = places()
    random_traffic(engine, 1, True)
    rows.forget()
    with rows.all_pads():
        assert places() == before
    assert places() == before


def tensors_of(view):
    inputs = view.inputs
    return [inputs.token_ids, inputs.context_lens, inputs.block_tables, view.live, *view.metadata]


# -- what the host reads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_the_logits_of_a_step_outlive_the_next(small_model, kind):
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [3, 4])
    first = engine.decode_step_sessions(sessions)
    was = first.clone()
    engine.take_tokens(sessions, first)
    step(engine, sessions)
    assert torch.equal(first, was)


@pytest.mark.parametrize(
    ("kind", "change"),
    [("eager", "in place"), ("eager", "in inference mode"), ("graphs", "in place"), ("graphs", "a copy")],
)
def test_tokens_follow_logits_that_the_caller_has_changed(small_model, kind, change):
    engine, other = (engine_of(small_model, KINDS[name]) for name in (kind, "065"))
    made = []
    for one in (engine, other):
        sessions = sessions_of(one, [3, 4])
        for n in range(4):
            logits = one.decode_step_sessions(sessions)
            if n == 1:
                if change == "a copy" or one is other:
                    logits = logits.clone()
                with torch.inference_mode(change == "in inference mode" or one is other):
                    logits[0, 17] = 1e4
            one.take_tokens(sessions, logits)
        made.append([session.completion_ids for session in sessions])
    assert made[0] == made[1]
    assert made[0][0][2] == 17


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_chosen_once_and_not_uploaded_again(small_model, kind, temperature, monkeypatch):
    """Seen without a counter: what counts dispatched operations changes the versions of tensors."""
    engine, uploads = engine_of(small_model, KINDS[kind]), []
    sessions = sessions_of(engine, [4, 4], temperature=temperature)
    step(engine, sessions)
    monkeypatch.setattr(engine.decode_step.rows, "_upload", uploads.append)
    monkeypatch.setattr("rosecourse.decode.step.next_tokens", None)
    for _ in range(2):
        step(engine, sessions)
        assert engine.decode_step.rows.tokens == [session.token_ids[-1] for session in sessions]
    assert uploads == []


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_a_row_of_nan_is_reported_and_the_others_go_on(small_model, kind):
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [3, 6, 5])
    for block in sessions[1].table:
        engine.kv.keys[:, block] = float("nan")
    logits = engine.decode_step_sessions(sessions)
    with pytest.raises(LogitsError) as caught:
        engine.take_tokens(sessions, logits)
    assert caught.value.rows == [1]
    engine.free(sessions[1])
    rest = [sessions[0], sessions[2]]
    engine.take_tokens(rest, logits[[0, 2]])
    for _ in range(5):
        step(engine, rest)
    undisturbed = engine_of(small_model, KINDS["065"])
    expected = sessions_of(undisturbed, [3, 6, 5])
    for _ in range(6):
        step(undisturbed, expected)
    assert [s.completion_ids for s in rest] == [expected[0].completion_ids, expected[2].completion_ids]


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_tokens_that_nobody_has_read_are_not_the_next_inputs(small_model, kind):
    """The caller gives the sessions words of its own, as speculative or constrained decoding would."""
    engine, other = (engine_of(small_model, KINDS[name]) for name in (kind, "065"))
    made = []
    for one in (engine, other):
        sessions = sessions_of(one, [3, 4])
        one.decode_step_sessions(sessions)
        for session in sessions:
            session.token_ids.append(21)
        for _ in range(4):
            step(one, sessions)
        made.append([session.completion_ids for session in sessions])
    assert made[0] == made[1]


# -- steps that are stopped -------------------------------------------------------------------------------------------


class Stopped(Exception):
    """What stops a step."""


def stop_at(engine, where, error, monkeypatch):
    """Let the next step of an engine end with an error, before or behind some of its work."""

    def stop(*args):
        raise error

    def stop_late(*args):
        real(*args)
        raise error

    owner, name = {
        "place": (engine.decode_step, "place"),
        "plan": (engine.decode_step, "plan"),
        "forward": (engine.decode_step.runner.work, "forward"),
        "best": (engine.decode_step.runner.work, "best"),
        "runner": (engine.decode_step, "runner"),
    }[where.removeprefix("after ")]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, stop_late if where.startswith("after ") else stop)


WHERE = ["place", "plan", "after plan", "runner", "after runner"]
INSIDE = ["forward", "after forward", "best", "after best"]  # of a run that is eager


@pytest.mark.parametrize(
    ("kind", "where", "error"),
    [
        *(("graphs", where, Stopped) for where in WHERE),
        *(("eager", where, KeyboardInterrupt) for where in WHERE),
        *(("eager", where, Stopped) for where in INSIDE),
    ],
)
def test_the_step_after_one_that_was_stopped_is_right(small_model, monkeypatch, kind, where, error):
    """Sessions change places and another joins. Wherever it stopped, the next step uploads all that it needs."""
    made = []
    for disturbed in (False, True):
        engine = engine_of(small_model, KINDS[kind])
        sessions = sessions_of(engine, [3, 4, 6], temperature=0.7)
        for _ in range(3):
            step(engine, sessions[:2])
        sessions.reverse()
        if disturbed:
            with monkeypatch.context() as patch:
                stop_at(engine, where, error, patch)
                with pytest.raises(error):
                    engine.decode_step_sessions(sessions)
            engine.audit(sessions)
        for _ in range(3):
            step(engine, sessions)
        made.append([session.token_ids for session in sessions])
    assert made[0] == made[1]
