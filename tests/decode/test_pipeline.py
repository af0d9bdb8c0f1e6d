"""The pipeline by itself: its ring, launches, first tokens and landings in any order, and what rows upload meanwhile.

Most of it runs over two devices that the host runs ahead of; see `tests/support/late_device.py`.
"""

import gc
import random
from types import SimpleNamespace

import pytest
import torch

from rosecourse import RequestError, SamplingParams
from rosecourse.decode.pipeline import PinnedSlot, Pipeline, TokenRing
from rosecourse.decode.rows import FIELDS, TOKEN
from rosecourse.errors import RosecourseError
from tests.support.late_device import LATE, assert_nothing_in_flight
from tests.support.pipelines import BEFORE, PROMPTS, make_engine, one_behind, told_alone

CPU = torch.device("cpu")


def prefilled(engine, *numbers):
    """Sessions, and logits for their first tokens. Every second one samples."""
    params = [SamplingParams(20, stop_on_eos=False, temperature=float(n % 2), seed=n) for n in numbers]
    sessions = [engine.new_session(PROMPTS[n], each) for n, each in zip(numbers, params, strict=True)]
    return sessions, engine.prefill(sessions)


def started(engine, *numbers):
    """Sessions with their first token, which nobody schedules."""
    sessions, logits = prefilled(engine, *numbers)
    engine.take_tokens(sessions, logits)
    return sessions


def begun(engine, *numbers):
    """Sessions with a first token that the host has not read."""
    sessions, logits = prefilled(engine, *numbers)
    assert engine.begin(sessions, logits) == ([], [])
    assert not any(session.completion_ids for session in sessions)
    return sessions


def assert_as_alone(sessions, *lengths):
    """Each has so many tokens, those that it would have by itself."""
    for session in sessions:
        assert session.completion_ids == told_alone(session)[0][: len(session.completion_ids)]
    if lengths:
        assert [len(session.completion_ids) for session in sessions] == list(lengths)


# -- the ring -------------------------------------------------------------------------------------------------------


def test_a_ring_refuses_tokens_rather_than_overwrite_some():
    ring = TokenRing(2, 4, CPU)
    with pytest.raises(TypeError):
        ring.put(None)  # takes no slot
    tokens = torch.tensor([1, 2, 3])
    slots = [ring.put(tokens), ring.put(torch.arange(6))]  # of a prefill there may be more than a step has rows
    tokens.fill_(9)  # the device writes its next tokens to where it had these
    with pytest.raises(RosecourseError, match="all slots of the ring hold tokens that nobody has read: land a step"):
        ring.put(tokens)
    assert [slot.read() for slot in slots] == [[1, 2, 3], [0, 1, 2, 3, 4, 5]]
    ring.give_back(slots[0])
    assert ring.put(tokens[:1]) is slots[0]
    assert [slot.read() for slot in slots] == [[9], [0, 1, 2, 3, 4, 5]]


def test_memory_that_a_device_may_still_write_is_not_given_back():
    """A kernel that writes tokens there holds nothing of the memory: whoever lets go of it waits for the device."""
    waits = []
    slot = PinnedSlot(4, CPU)
    slot.copied = SimpleNamespace(synchronize=lambda: waits.append("for the device"))
    del slot
    gc.collect()
    assert waits == ["for the device"]


# -- launch, begin and land -------------------------------------------------------------------------------------------


def test_how_far_the_host_may_be_ahead():
    engine = make_engine(LATE)
    for device, steps in (("cpu", 0), ("cuda", 1)):
        assert Pipeline.ahead_on(engine.pipeline, torch.device(device)) == steps
    assert make_engine(BEFORE).pipeline.steps_ahead == 0
    assert (engine.pipeline.steps_ahead, len(engine.pipeline.ring.empty)) == (1, 2)


@one_behind
@pytest.mark.parametrize("seed", range(3))
def test_any_prefills_and_steps_may_follow_each_other(parts, seed):
    """Prefills, steps over any sessions, landings, forks, and sessions that are freed and come back, in any order."""
    draw = random.Random(seed)
    engine = make_engine(parts, num_blocks=400)
    sessions = []

    def begin():
        numbers = [draw.randrange(len(PROMPTS)) for _ in range(draw.randint(1, 3))]
        sessions.extend(begun(engine, *numbers))

    def step():
        ready = [s for s in sessions if s.num_cached_tokens < len(s.prompt_ids) + 17]
        if ready:
            engine.launch(draw.sample(ready, draw.randint(1, min(4, len(ready)))))

    def come_back():
        session = draw.choice(sessions)
        engine.free(session)
        if engine.num_in_flight < 2:
            engine.begin([session], engine.prefill([session]))

    def fork():
        sessions.append(engine.fork(draw.choice(sessions)))

    begin()
    for _ in range(40):
        if engine.num_in_flight == 2 or (engine.num_in_flight and draw.random() < 0.15):
            engine.land()
        draw.choice([begin, step, step, step, step, come_back, fork])()
    engine.settle()
    assert_as_alone(sessions)
    engine.audit(sessions)
    assert_nothing_in_flight(engine)


@one_behind
def test_what_cannot_be_launched_is_refused_and_changes_nothing(parts):
    engine = make_engine(parts)
    with pytest.raises(RequestError, match="no decode step is in flight: launch one first"):
        engine.land()
    (first,), (second,) = begun(engine, 0), begun(engine, 1)
    (third,), logits = prefilled(engine, 2)
    refused = [
        (lambda: engine.begin([third], logits), "land a step first"),
        (lambda: engine.launch([second]), "land a step first"),
        (lambda: engine.launch([second, third]), "`decode` takes no session that"),
    ]
    for call, says in refused:
        with pytest.raises(RosecourseError, match=says):
            call()
        assert engine.num_in_flight == 2
    assert [session for session, _ in engine.land().new_tokens] == [first]
    engine.begin([third], logits)
    assert [session for session, _ in engine.land().new_tokens] == [second]
    engine.launch([third, second, first])
    with pytest.raises(RequestError):
        engine.begin([first], logits)
    engine.settle()
    assert_as_alone([first, second, third], 2, 2, 2)
    assert_nothing_in_flight(engine)


LAND_ALL = {
    "fork": lambda engine, sessions: engine.free(engine.fork(sessions[0])),
    "free": lambda engine, sessions: engine.free(sessions[0]),
    "settle": lambda engine, sessions: engine.settle(),
    "hand_over": lambda engine, sessions: (engine.hand_over(None), engine.guard.hand_back()),
}


@one_behind
@pytest.mark.parametrize("call", LAND_ALL.values(), ids=LAND_ALL)
def test_what_lets_steps_land(parts, call):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    engine.launch(sessions)
    call(engine, sessions)
    assert_nothing_in_flight(engine)
    assert_as_alone(sessions, 3, 3)


@one_behind
def test_steps_that_are_dropped_can_be_computed_again(parts):
    engine = make_engine(parts)
    sessions = started(engine, 0, 1)
    engine.launch(sessions)
    engine.launch(sessions)
    engine.runner.drop()
    assert_nothing_in_flight(engine)
    assert not engine.decode_step.rows.known
    assert_as_alone(sessions, 1, 1)
    for session in sessions:
        engine.free(session)
    engine.take_tokens(sessions, engine.prefill(sessions))
    engine.launch(sessions)
    engine.settle()
    assert_as_alone(sessions, 3, 3)


# -- rows -----------------------------------------------------------------------------------------------------------


@one_behind
def test_nothing_is_uploaded_for_sessions_in_flight(parts, monkeypatch):
    """Their last tokens, of a prefill or a step, are on the device alone; a new block is one number."""
    engine = make_engine(parts, block_size=16)
    rows, uploads = engine.decode_step.rows, []
    upload = rows._upload
    monkeypatch.setattr(rows, "_upload", lambda changes: (uploads.append(list(changes)), upload(changes))[1])
    a, b, c, d = sessions = begun(engine, 0, 1, 2, 4)  # 1 to 5 tokens: 11 steps inside the first block
    engine.launch(sessions)
    assert len(uploads[0]) == 4 * (FIELDS + 1)  # all but the token, and the block
    assert not set(uploads[0]) & set(range(TOKEN * 4, TOKEN * 4 + 4))
    landed = engine.land()
    assert ([session for session, _ in landed.new_tokens], landed.without) == (sessions, [])
    assert_as_alone(sessions, 1, 1, 1, 1)
    for batch in ([a, c, d], [d, c, a], [c, a], [a, c]):
        engine.launch(batch)
        engine.land()
    # Where b and d sat there are pads: a position, a flag and a block.
    assert [len(changes) for changes in uploads[1:]] == [3, 3]
    engine.launch([b, a, d])  # who stays away for a step comes back as new
    engine.settle()
    assert_as_alone(sessions, 7, 3, 6, 5)
