"""Bug hunts: each bug of 036 to 063 shows as its symptom says, and nothing else is broken."""

from dataclasses import replace

import pytest

from rosecourse import ConfigError, InferenceEngine
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.scenes import fork, side_by_side, start_lengths
from rosecourse.lab.exercises import hunting as bug_hunt
from rosecourse.lab.exercises.hunting import hunt

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture(autouse=True)
def _one_model(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "load_model", lambda **_: model)


@needs_triton
@pytest.mark.parametrize("number", COURSES)
def test_a_scene_is_the_same_at_each_look(number, model):
    """The learner's first look is the notebook's own cell, and nobody makes new engines for the second."""
    found = hunt(number)
    _, broken = found.engines(model)
    looks = [[looked_at(live) for live in found.scene(broken)] for _ in range(2)]
    next(found.scene(broken))  # a look that nobody ends
    looks += [[looked_at(live) for live in found.scene(broken)]]
    assert all(look == looks[0] for look in looks), looks


def looked_at(live):
    """What a learner sees of each session, or of each reader."""
    if any(hasattr(one, "read") for one in live.values()):
        return {name: len(one.read) for name, one in live.items()}
    return {name: (list(one.token_ids), one.num_cached_tokens, repr(one.table)) for name, one in live.items()}


def wrong_tokens(found):
    """In each moment of the scene, which sessions' tokens differ."""
    return [
        {name for name, session in ours.items() if session.token_ids != theirs[name].token_ids}
        for _, _, ours, _, theirs in side_by_side(found)
    ]


@pytest.mark.parametrize(
    ("number", "quiet", "touched", "last"),  # moments before which all is right, whose tokens differ at all, at the end
    [
        ("036", 2, "S", "S"),
        ("038", 3, "ABC", "ABC"),
        ("059", 4, ["fork"], ["fork"]),
        ("060", 4, "BCD", ""),
        pytest.param("061", 3, "DEF", "", marks=needs_triton),
        ("062", 3, "A", "A"),
        ("063", 2, ["A", "B", "fork"], ["A"]),
    ],
)
def test_the_symptom(number, quiet, touched, last, model):
    moments = wrong_tokens(hunt(number))
    assert not any(moments[:quiet])
    assert set.union(*moments) <= set(touched)
    assert moments[-1]
    assert moments[-1] >= set(last)


def tokens(engine, lengths, steps=14, forks_at=()):
    """The tokens of prompts; forks of the first one, which go on with another word, may join at a step."""
    sessions = list(start_lengths(engine, dict(enumerate(lengths))).values())
    for step in range(steps):
        sessions += [fork(engine, sessions[0]) for _ in range(forks_at.count(step))]
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
        engine.audit(sessions)
    return [session.completion_ids for session in sessions]


@pytest.mark.parametrize(
    ("number", "more", "is_wrong"),
    [
        ("036", {"lengths": (5, 3, 8)}, False),
        ("036", {"lengths": (9, 3), "forks_at": (1,)}, True),
        ("038", {"lengths": (5, 5, 5)}, False),
        ("038", {"lengths": (6, 5), "steps": 8}, True),
        *(("059", {"lengths": (5, 6), "forks_at": at}, False) for at in ((), (2,))),
        *(("062", {"lengths": (5, 6), "forks_at": at}, at == (1, 1)) for at in ((1, 1), (1,), (1, 2), (3, 3))),
        *(pytest.param("061", {"lengths": lengths}, False, marks=needs_triton) for lengths in ((5, 6, 8), (5, 5, 5))),
    ],
)
def test_other_traffic_is_right(number, more, is_wrong, model):
    right, broken = (tokens(engine, **more) for engine in hunt(number).engines(model))
    assert (right != broken) == is_wrong


@needs_triton
def test_061_below_its_threshold_does_no_harm(model, monkeypatch):
    found = hunt("061")
    config = replace(found.config, triton_kv_append_min_batch=4)
    engines = [InferenceEngine(model, config, parts) for parts in (found.right, found.broken)]
    for ours, theirs in zip(*map(found.scene, engines), strict=True):
        assert [one.token_ids for one in ours.values()] == [one.token_ids for one in theirs.values()]
    monkeypatch.setattr(bug_hunt, "triton_runs_on", lambda device: False)
    with pytest.raises(ConfigError, match="the kernels of lesson 061 do not run here"):
        hunt("061").answer(position=3)
    assert hunt("060").engines(model)
