"""The pipeline by itself: its ring, the order of launches and landings, and what rows upload with a step in flight."""

import gc
from types import SimpleNamespace

import pytest
import torch

from rosecourse import KVCacheExhausted, RequestError, SamplingParams
from rosecourse.decode.pipeline import PinnedSlot, Pipeline, TokenRing
from rosecourse.decode.rows import FIELDS
from rosecourse.decode.sampling import NO_TOKEN
from rosecourse.errors import RosecourseError
from tests.support.late_device import BEHIND, LATE, assert_nothing_in_flight
from tests.support.pipelines import BEFORE, PROMPTS, SickModel, alone, make_engine, one_behind

CPU = torch.device("cpu")
LONG = SamplingParams(20, stop_on_eos=False)
EXPECTED = [alone(tuple(prompt), LONG)[0] for prompt in PROMPTS]


def started(engine, *numbers, params=LONG):
    """Prefilled sessions with their first token, which nobody schedules."""
    sessions = [engine.new_session(PROMPTS[number], params) for number in numbers]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def assert_as_alone(sessions, *numbers):
    for session, number in zip(sessions, numbers, strict=True):
        assert session.completion_ids == EXPECTED[number][: len(session.completion_ids)]


# -- the ring -------------------------------------------------------------------------------------------------------


def test_tokens_go_around_the_ring():
    ring = TokenRing(2, 4, CPU)
    for step in range(5):
        tokens = torch.tensor([step, step + 10, step + 20][: 1 + step % 3])
        slot, expected = ring.put(tokens), tokens.tolist()
        tokens.fill_(9)  # the device writes its next tokens to where it had these
        assert slot.read() == expected
        ring.give_back(slot)


def test_a_full_ring_is_refused_and_no_slot_is_written_again():
    ring = TokenRing(2, 4, CPU)
    slots = [ring.put(torch.tensor([n, n])) for n in (1, 2)]
    with pytest.raises(RosecourseError, match="all slots of the ring hold tokens that nobody has read: land a step"):
        ring.put(torch.tensor([3, 3]))
    assert [slot.read() for slot in slots] == [[1, 1], [2, 2]]
    ring.give_back(slots[0])
    assert ring.put(torch.tensor([3, 3])) is slots[0]
    assert [slot.read() for slot in slots] == [[3, 3], [2, 2]]


def test_memory_that_a_device_may_still_write_is_not_given_back():
    """A kernel that writes tokens there holds nothing of the memory: whoever lets go of it waits for the device."""
    waits = []
    slot = PinnedSlot(4, CPU)
    slot.copied = SimpleNamespace(synchronize=lambda: waits.append("for the device"))
    del slot
    gc.collect()
    assert waits == ["for the device"]


def test_a_put_that_fails_takes_no_slot():
    ring = TokenRing(1, 2, CPU)
    with pytest.raises(TypeError):
        ring.put(None)
    assert ring.put(torch.tensor([5])).read() == [5]


# -- launch and land ------------------------------------------------------------------------------------------------


def test_how_far_the_host_may_be_ahead():
    engine = make_engine(LATE)
    for device, steps in (("cpu", 0), ("cuda", 1)):
        assert Pipeline.ahead_on(engine.pipeline, torch.device(device)) == steps
    assert make_engine(BEFORE).pipeline.steps_ahead == 0
    assert (engine.pipeline.steps_ahead, len(engine.pipeline.ring.empty)) == (1, 2)


@one_behind
def test_steps_land_in_the_order_of_their_launch(parts):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1, 2)
    batches = [sessions, sessions[1:], sessions[::-1], sessions[:1]]
    engine.launch(batches[0])
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        if following is not None:
            engine.launch(following)
            assert engine.num_in_flight == 2
        landed = engine.land()
        assert [session for session, _ in landed.new_tokens] == batch
        assert [session.token_ids[-1] for session in batch] == [token for _, token in landed.new_tokens]
        assert landed.without == []
    assert [len(session.completion_ids) for session in sessions] == [4, 4, 4]
    assert_as_alone(sessions, 0, 1, 2)
    assert_nothing_in_flight(engine)
    with pytest.raises(RequestError, match="no decode step is in flight: launch one first"):
        engine.land()


@one_behind
def test_a_third_step_is_refused_and_changes_nothing(parts):
    engine = make_engine(parts)
    first, second = started(engine, 2, 3)
    engine.launch([first])
    engine.launch([first])
    with pytest.raises(RequestError, match="only a session that has taken its token can be decoded"):
        engine.launch([first])
    with pytest.raises(RosecourseError, match="land a step first"):
        engine.launch([second])
    assert engine.num_in_flight == 2
    engine.land()
    engine.launch([second])
    engine.settle()
    assert [len(session.completion_ids) for session in (first, second)] == [3, 2]
    assert_as_alone([first, second], 2, 3)
    assert_nothing_in_flight(engine)


@one_behind
def test_a_session_that_has_not_taken_its_token_is_refused(parts):
    """A session that is computed, and that no step in flight has, waits for `take_tokens`."""
    engine = make_engine(parts)
    first, second = started(engine, 0, 1)
    engine.launch([first])
    third = engine.new_session(PROMPTS[2], LONG)
    engine.prefill([third])
    with pytest.raises(RequestError, match="only a session that has taken its token can be decoded"):
        engine.launch([first, second, third])
    engine.launch([first, second])
    engine.settle()
    assert_as_alone([first, second], 0, 1)
    assert [len(session.completion_ids) for session in (first, second)] == [3, 2]


@one_behind
def test_a_dry_pool_is_noticed_before_anything_has_changed(parts):
    engine = make_engine(parts, num_blocks=2)
    (session,) = started(engine, 3, params=SamplingParams(1, stop_on_eos=False))  # 8 tokens in 2 blocks
    session.finish_reason, session.params = None, LONG
    before = (list(session.table), session.num_cached_tokens, list(session.token_ids))
    with pytest.raises(KVCacheExhausted):
        engine.launch([session])
    assert (list(session.table), session.num_cached_tokens, list(session.token_ids)) == before
    assert_nothing_in_flight(engine)


@one_behind
@pytest.mark.parametrize("call", ["fork", "free", "settle", "hand_over"])
def test_what_lets_steps_land(parts, call):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    engine.launch(sessions)
    if call == "fork":
        assert engine.fork(sessions[0]).token_ids == sessions[0].token_ids
    elif call == "free":
        engine.free(sessions[0])
    elif call == "settle":
        engine.settle()
    else:
        engine.hand_over(None)
        engine.guard.hand_back()
    assert_nothing_in_flight(engine)
    assert [len(session.completion_ids) for session in sessions] == [3, 3]
    assert_as_alone(sessions, 0, 1)


def test_a_step_that_one_waits_for_comes_after_those_in_flight():
    engine = make_engine(BEHIND)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    engine.launch(sessions)
    engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    assert_nothing_in_flight(engine)
    assert [len(session.completion_ids) for session in sessions] == [4, 4]
    assert_as_alone(sessions, 0, 1)


@one_behind
def test_steps_that_are_dropped_can_be_computed_again(parts):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    engine.launch(sessions)
    engine.drop()
    assert_nothing_in_flight(engine)
    assert not engine.decode_step.rows.known
    assert [len(session.completion_ids) for session in sessions] == [1, 1]
    for session in sessions:
        engine.free(session)
    engine.take_tokens(sessions, engine.prefill(sessions))
    for _ in range(3):
        engine.launch(sessions)
        engine.land()
    assert [len(session.completion_ids) for session in sessions] == [5, 5]
    assert_as_alone(sessions, 0, 1)


@one_behind
def test_a_read_that_is_interrupted_has_changed_nothing(parts, monkeypatch):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    made = engine.pipeline.in_flight[0].pending
    with monkeypatch.context() as patch:
        patch.setattr(made, "read", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.land()
    assert engine.num_in_flight == 1
    engine.land()
    assert_as_alone(sessions, 0, 1)
    assert_nothing_in_flight(engine)


@one_behind
def test_a_row_of_nan_is_told_apart(parts):
    model = SickModel()
    engine = make_engine(parts, model)
    sessions = started(engine, 0, 1, 2)
    model.sick = {(sessions[1].token_ids[-1], len(sessions[1].token_ids) - 1)}
    engine.launch(sessions)
    engine.launch(sessions)
    landed = engine.land()
    assert landed.without == [sessions[1]]
    assert [session for session, _ in landed.new_tokens] == [sessions[0], sessions[2]]
    sessions[1].finish_reason = "error"
    assert [session for session, _ in engine.land().new_tokens] == [sessions[0], sessions[2]]
    assert [len(session.completion_ids) for session in sessions] == [3, 1, 3]
    assert_as_alone(sessions, 0, 1, 2)
    assert NO_TOKEN not in sessions[1].token_ids


# -- rows -----------------------------------------------------------------------------------------------------------


def watched(engine, monkeypatch):
    """What the plans of an engine upload, a list of dicts, and how often they move rows."""
    rows, uploads, moves = engine.decode_step.rows, [], []
    upload, move = rows._upload, rows._move
    monkeypatch.setattr(rows, "_upload", lambda changes: (uploads.append(dict(changes)), upload(changes))[1])
    monkeypatch.setattr(rows, "_move", lambda pairs: (moves.append(len(pairs[0])), move(pairs))[1])
    return uploads, moves


@one_behind
def test_nothing_is_uploaded_for_sessions_in_flight(parts, monkeypatch):
    """Their last tokens are on the device alone; a new block is one number."""
    engine = make_engine(parts, block_size=16)
    sessions = started(engine, 0, 1, 2)  # 3 to 5 tokens: 11 steps inside the first block
    uploads, moves = watched(engine, monkeypatch)
    engine.launch(sessions)
    assert [len(changes) for changes in uploads] == [len(sessions) * (FIELDS + 2)]
    for _ in range(10):
        engine.launch(sessions)
        engine.land()
    assert len(uploads) == 1
    for _ in range(4):
        engine.launch(sessions)
        engine.land()
    assert [len(changes) for changes in uploads[1:]] == [1, 1, 1]
    assert not moves
    engine.settle()
    engine.launch(sessions)  # the host has read all, and the device knows the same
    assert len(uploads) == 4
    engine.settle()
    assert_as_alone(sessions, 0, 1, 2)


@one_behind
def test_rows_move_while_a_step_is_in_flight(parts, monkeypatch):
    """They take their tokens with them, which the host has not read; who stays away for a step comes back as new."""
    engine = make_engine(parts, block_size=16)
    a, b, c, d = sessions = started(engine, 0, 1, 2, 4)
    uploads, moves = watched(engine, monkeypatch)
    engine.launch(sessions)
    for batch in ([a, c, d], [d, c, a], [c, a], [a, c]):
        engine.launch(batch)
        engine.land()
    assert moves == [3, 3, 2, 2]
    joined, *left = [len(changes) for changes in uploads]
    assert joined == 4 * (FIELDS + 2)
    assert left == [3, 3]  # where b and d sat there are pads: a position, a flag and a block
    engine.land()
    engine.launch([b, a, d])
    engine.settle()
    assert [len(session.completion_ids) for session in sessions] == [7, 3, 6, 5]
    assert_as_alone(sessions, 0, 1, 2, 4)
