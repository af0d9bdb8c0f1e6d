"""Rows that stay: after each plan the device knows what the sessions say, and only what has changed is uploaded."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.lessons import l064 as module
from tests.decode.rows_world import MOST_ROWS, ROW, RowsWorld
from tests.support.oracles import prompts_of

PARTS = lesson("065").after
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.0, 0.5, 1e-30, 100.0]),
        "top_k": st.sampled_from([0, 1, 50, 2**40]),
        "top_p": st.sampled_from([1.0, 0.9, 1e-12]),
        "seed": st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**70]),
    }
)


@given(data=st.data())
@settings(max_examples=70, deadline=None)
def test_rows_are_what_the_sessions_say(data):
    """Sessions join, leave, change places, fork, are freed and come back; what is uploaded is just what differs."""
    world = RowsWorld(block_size=data.draw(st.sampled_from([1, 2, 4]), "block size"))
    live = [world.session(data.draw(st.integers(1, 5)), **data.draw(PARAMS)) for _ in range(3)]
    batch = list(live)
    for _ in range(data.draw(st.integers(1, 14), "steps")):
        action = data.draw(st.sampled_from(["step", "step", "new", "fork", "free", "again", "word", "batch", "forget"]))
        one = data.draw(st.sampled_from(live), "who") if live else None
        if action == "new":
            live.append(world.session(data.draw(st.integers(1, 5)), **data.draw(PARAMS)))
        elif action == "fork" and one is not None:
            live.append(world.fork(one))
            live[-1].token_ids[-1] = data.draw(st.sampled_from([one.token_ids[-1], 7]))
        elif action == "free" and one is not None:
            world.free(one)
            live.remove(one)
        elif action == "again" and one is not None:
            world.again(one)
        elif action == "word" and one is not None:
            one.token_ids[-1] = world.token()
        elif action == "forget":
            world.rows.forget()
            world.seated = []
        elif action == "batch" and live:
            batch = data.draw(st.lists(st.sampled_from(live), unique_by=id, min_size=1, max_size=MOST_ROWS), "batch")
        batch = [session for session in batch if session.table is not None]
        if not batch:
            continue
        world.kv.place([session.table for session in batch])
        expected = world.expected_numbers(batch)
        uploaded, _ = world.step(*batch, take=data.draw(st.booleans(), "tokens stay on the device"))
        assert uploaded == expected


# -- what is uploaded ---------------------------------------------------------------------------------------------


def test_a_new_block_is_one_number_and_inside_a_block_none():
    world = RowsWorld(block_size=4)
    sessions = [world.session(n) for n in (1, 2, 4)]
    world.step(*sessions)
    assert [world.step(*sessions) for _ in range(8)] == [(n, 0) for n in (0, 1, 1, 1, 0, 1, 1, 1)]


def test_when_a_session_leaves_the_others_move_up_in_one_gather():
    world = RowsWorld(block_size=16)
    sessions = [world.session(3) for _ in range(5)]
    world.step(*sessions)
    assert world.step(*sessions[:4]) == (0, 0)  # at the end: nobody moves
    assert world.step(sessions[0], sessions[2], sessions[3]) == (0, 1)
    assert world.step(sessions[3], sessions[0], sessions[2]) == (0, 1)  # three change places in a circle
    assert world.step(sessions[2]) == (0, 1)


def test_the_list_of_chosen_tokens_is_its_callers():
    """Whoever changes the list, and the sessions' last tokens with it, changes the rows too."""
    world = RowsWorld(block_size=16)
    sessions = [world.session(3) for _ in range(2)]
    world.step(*sessions)
    chosen = [session.token_ids[-1] for session in sessions]
    world.rows.take(torch.tensor(chosen), chosen)
    chosen[0] = sessions[0].token_ids[-1] = 77
    assert world.plan(*sessions) == (1, 0)


def test_who_is_in_the_rows():
    world = RowsWorld()
    a, b, c = (world.session(3) for _ in range(3))
    world.step(a, b)
    assert world.rows.holds([a, b])
    for others in ([b, a], [a], [a, b, c], [c, b], [a, world.fork(b)], []):
        assert not world.rows.holds(others)
    world.again(b)
    assert not world.rows.holds([a, b])
    world.step(a, b)
    world.rows.forget()
    assert not world.rows.holds([a, b])


def test_a_session_may_fill_its_row_to_the_end():
    """Hazard 27: positions 0, in a first block, at its end, and the last of all in one batch.

    A row has no length of 0: a session in a decode step has a last token, whose position is 0 at least.
    """
    world = RowsWorld(block_size=4, max_seq_len=64)
    sessions = [world.session(n) for n in (1, 2, 3, 4, 62)]
    empty = world.session(1)
    world.kv.free(empty.table)
    empty.table, empty.num_cached_tokens = world.kv.allocate(0), 0
    assert world.step(*sessions, empty)[0] == 6 * ROW + 1 + 1 + 1 + 2 + 16 + 1
    assert world.plan(sessions[-1], empty) == (0, 1)
    assert sessions[-1].num_cached_tokens == 63


# -- a step that does not come to its end -------------------------------------------------------------------------


def engines(model):
    params = SamplingParams(max_new_tokens=30, stop_on_eos=False)
    for _ in range(2):
        engine = InferenceEngine(model, EngineConfig(block_size=4, max_batch_size=4, prefix_cache=False), PARTS)
        sessions = [engine.new_session(prompt, params) for prompt in prompts_of([3, 4, 6], 211)]
        engine.take_tokens(sessions, engine.prefill(sessions))
        yield engine, sessions


def go_on(engine, sessions, steps=3):
    for _ in range(steps):
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


class Stopped(Exception):
    """What stops a step."""


WHERE = ["plan", "gather", "upload", "kv_append", "forward", "late in the forward", "advance"]


@pytest.mark.parametrize(("where", "error"), [("plan", KeyboardInterrupt), *((where, Stopped) for where in WHERE)])
def test_the_step_after_one_that_was_stopped_is_right(small_model, monkeypatch, where, error):
    """Two sessions change places and a third joins. Wherever it stopped, the next step uploads all that it needs."""
    (clean, expected), (engine, sessions) = engines(small_model)
    for each, live in ((clean, expected), (engine, sessions)):
        go_on(each, live[:2])
        live.reverse()
    step, real_forward, real_index_tensor = engine.decode_step, engine.decode_step.forward, module.index_tensor

    def stop(*arguments):
        raise error

    def stop_late(*arguments):
        real_forward(*arguments)
        raise error

    with monkeypatch.context() as patch:
        if where in ("gather", "upload"):  # the first and the second list of addresses
            patch.setattr(module, "index_tensor", after(WHERE.index(where) - 1, real_index_tensor, stop))
        elif where == "advance":
            patch.setattr(step.rows, "advance", stop)
        elif where == "late in the forward":
            patch.setattr(step, "forward", stop_late)
        else:
            patch.setattr(step, where, stop)
        with pytest.raises(error):
            engine.decode_step_sessions(sessions)
    engine.audit(sessions)
    assert [s.num_cached_tokens for s in sessions] == [s.num_cached_tokens for s in expected]
    for each, live in ((clean, expected), (engine, sessions)):
        go_on(each, live)
    assert [s.token_ids for s in sessions] == [s.token_ids for s in expected]


def after(calls, real, stop):
    """A function that is the real one so many times, and then the other."""
    left = [calls]

    def function(*arguments):
        left[0] -= 1
        return real(*arguments) if left[0] >= 0 else stop()

    return function
