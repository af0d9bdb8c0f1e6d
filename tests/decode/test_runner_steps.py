"""The steps of a runner: what a graph may not freeze, what the host reads, and steps that are stopped."""

import pytest
import torch

from rosecourse.decode.runner import buckets_up_to
from tests.decode.runners import KINDS, engine_of, sessions_of, step, traffic


@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_the_cache_and_the_rows_stay_where_they_are(small_model, kind):
    """A graph has recorded their addresses: nothing that happens to an engine may make them anew."""
    engine = engine_of(small_model, KINDS[kind])
    rows, kv, runner = engine.decode_step.rows, engine.kv, engine.decode_step.runner
    greedy = [(size, False) for size in buckets_up_to(11)] if kind == "graphs" else []

    def places():
        each = [kv.keys, kv.values, *kv.k_layers, *kv.v_layers, rows.state]
        each += [made for key in greedy for made in runner.outcomes[key]]
        for view in map(rows.view, buckets_up_to(11)):
            inputs = view.inputs
            each += [inputs.token_ids, inputs.context_lens, inputs.block_tables, view.live, *view.metadata]
        return [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in each]

    before = places()
    traffic(engine)
    rows.forget()
    with rows.all_pads():
        assert places() == before
    assert places() == before


# -- what the host reads ----------------------------------------------------------------------------------------------


CHANGES = {
    "in place": lambda logits, _: change(logits),
    "in inference mode": lambda logits, _: torch.inference_mode()(change)(logits),
    "a copy": lambda logits, _: change(logits.clone()),
    "words of its own": lambda _, sessions: [session.token_ids.append(21) for session in sessions] and None,
}


def change(logits):
    logits[0, 17] = 1e4
    return logits


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
@pytest.mark.parametrize("how", CHANGES.values(), ids=CHANGES)
def test_tokens_follow_what_the_caller_does_with_the_logits(small_model, kind, how):
    """The caller may change them, or give the sessions words of its own, as constrained decoding would."""
    made = []
    for name in (kind, "065"):
        engine = engine_of(small_model, KINDS[name])
        sessions = sessions_of(engine, [3, 4])
        step(engine, sessions)
        kept = engine.decode_step_sessions(sessions)
        logits = how(kept.clone() if name == "065" else kept, sessions)
        was = kept.clone()
        if logits is not None:
            assert engine.take_tokens(sessions, logits)[0] == 17
        for _ in range(4):
            step(engine, sessions)
        assert torch.equal(kept, was), "the logits of a step outlive the next"
        made.append([session.completion_ids for session in sessions])
    assert made[0] == made[1]


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


# -- steps that are stopped -------------------------------------------------------------------------------------------


class Stopped(Exception):
    """What stops a step."""


def stop_at(engine, where, error, monkeypatch):
    """Let the next step of an engine end with an error, before or behind some of its work."""
    name, late = where.removeprefix("after "), where.startswith("after ")
    step = engine.decode_step
    owner = step.runner.work if name == "best" else step
    real = getattr(owner, name)

    def stop(*args):
        if late:
            real(*args)
        raise error

    monkeypatch.setattr(owner, name, stop)


WHERE = ["place", "plan", "after plan", "runner", "after runner"]


@pytest.mark.parametrize(
    ("kind", "where", "error"),
    [
        *(("graphs", where, Stopped) for where in WHERE),
        *(("eager", where, KeyboardInterrupt) for where in [*WHERE, "best", "after best"]),
        *(("065", where, Stopped) for where in ("plan", "after plan", "forward", "after forward")),
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
