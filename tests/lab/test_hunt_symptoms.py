"""Bug hunts: each bug shows as its symptom says, and nothing else is broken."""

from dataclasses import replace

import pytest
import torch

from rosecourse import ConfigError, InferenceEngine
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.scenes import key_at, side_by_side, start
from rosecourse.lab.exercises import hunting as bug_hunt
from rosecourse.lab.exercises.hunting import hunt

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture(autouse=True)
def _one_model(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "load_model", lambda **_: model)


def tokens(engine, lengths, steps=14, fork_at=None, order=None):
    """The tokens of prompts by name; a fork of the first one, which goes on with another word, may join at a step."""
    prompts = {name: [10 * n + 3] * length for n, (name, length) in enumerate(lengths.items())}
    sessions = start(engine, {name: prompts[name] for name in order or prompts})
    for step in range(steps):
        if step == fork_at:
            sessions["fork"] = engine.fork(next(iter(sessions.values())))
            sessions["fork"].token_ids[-1] = 99
        live = list(sessions.values())
        engine.take_tokens(live, engine.decode_step_sessions(live))
    return {name: session.completion_ids for name, session in sessions.items()}


def differ(found, model, *args, **more):
    """The names of the sessions whose tokens the broken part changes."""
    right, broken = (tokens(engine, *args, **more) for engine in found.engines(model))
    return {name for name in right if right[name] != broken[name]}


def wrong_tokens(found, model):
    """In each moment of the scene, which sessions' tokens differ."""
    return [
        {name for name, session in ours.items() if session.token_ids != theirs[name].token_ids}
        for _, _, ours, _, theirs in side_by_side(found, model)
    ]


@pytest.mark.grid
@needs_triton
@pytest.mark.parametrize("number", COURSES)
def test_a_scene_is_the_same_at_each_look(number, model):
    """The learner's first look is the notebook's own cell, and nobody makes new engines for the second."""
    found = hunt(number)
    _, broken = found.engines(model)
    looks = [[looked_at(live) for live in found.scene(broken)] for _ in range(3)]
    next(found.scene(broken))  # a look that nobody ends
    looks += [[looked_at(live) for live in found.scene(broken)]]
    assert all(look == looks[0] for look in looks), looks


def looked_at(live):
    """What a learner sees of each session, or of each reader."""
    if any(hasattr(one, "read") for one in live.values()):
        return {name: len(one.read) for name, one in live.items()}
    return {name: (list(one.token_ids), one.num_cached_tokens, repr(one.table)) for name, one in live.items()}


def test_036_one_of_two_reads_the_others_block_and_never_recovers(model):
    found = hunt("036")
    broken = found.engines(model)[1]
    states = []
    for sessions in found.scene(broken):
        tables = broken.decode_step.block_tables(list(sessions.values()))[0].tolist()
        held = {name: session.block_ids_per_layer[0] for name, session in sessions.items()}
        states.append([n for n, row in zip(held, tables, strict=True) if row[: len(held[n])] != held[n]])
    assert states == [[], [], *[["S"]] * 9]
    assert differ(found, model, {"A": 5, "B": 3, "C": 8}) == set()
    assert differ(found, model, {"A": 9, "B": 3}, fork_at=1) != set()
    assert wrong_tokens(found, model)[-1] == {"S"}


def test_038_only_who_begins_a_block_in_a_mixed_batch_goes_wrong(model):
    found = hunt("038")
    moments = wrong_tokens(found, model)
    assert moments[:3] == [set(), set(), set()]
    assert moments[-1] == {"A", "B", "C"}
    assert differ(found, model, {"A": 5, "B": 5, "C": 5}) == set()
    assert "B" not in differ(found, model, {"A": 5, "B": 6}, steps=4)  # the last of the batch
    assert "B" in differ(found, model, {"A": 5, "B": 6}, steps=8, order="BA")


def test_059_the_tokens_go_wrong_long_after_the_books(model):
    found = hunt("059")
    moments = wrong_tokens(found, model)
    first = next(step for step, names in enumerate(moments) if names)
    assert first > 3
    assert {name for names in moments for name in names} == {"fork"}
    assert first > int(found._truth["moment"].pop()) + 1
    assert differ(found, model, {"A": 5, "B": 6, "C": 8}) == set()
    assert differ(found, model, {"A": 5, "B": 6}, fork_at=2) == set()  # in the middle of a block


def test_060_the_others_are_written_into_the_newcomers_slot(model):
    found = hunt("060")
    places = [
        {n: at for n, s in ours.items() if (at := wrong_positions(right, s, broken, theirs[n]))}
        for _, right, ours, broken, theirs in side_by_side(found, model)
    ]
    assert places[:3] == [{}, {}, {}]
    assert places[3] == {"B": [10, 14], "C": [18, 22], "D": [2, 6]}  # slot 2 in place of slot 6
    assert {name for names in wrong_tokens(found, model)[4:] for name in names} <= {"B", "C", "D"}
    assert wrong_tokens(found, model)[-1] != set()


def test_060_a_newcomer_that_comes_a_step_later_does_no_harm(model):
    found = hunt("060")

    def play(engine, steps_between):
        sessions = start(engine, {"A": [3] * 4, "B": [13] * 12, "C": [23] * 20})
        made = {**sessions}
        for moment in range(8):
            if moment == 2:
                engine.free(sessions.pop("A"))
            if moment == 2 + steps_between:
                newcomer = start(engine, {"E": [41] * 10})
                sessions, made = sessions | newcomer, made | newcomer
            live = list(sessions.values())
            engine.take_tokens(live, engine.decode_step_sessions(live))
        return {name: session.completion_ids for name, session in made.items()}

    assert len({str(play(engine, 1)) for engine in found.engines(model)}) == 1
    assert len({str(play(engine, 0)) for engine in found.engines(model)}) == 2


def wrong_positions(right, ours, broken, theirs):
    positions = range(ours.num_cached_tokens)
    return [p for p in positions if not torch.equal(key_at(right.kv, ours, p), key_at(broken.kv, theirs, p))]


def test_061_the_second_round_of_requests_swaps_its_keys(model):
    found = hunt("061")
    right, broken = found.engines(model)
    wrong = [
        {name: wrong_positions(right, session, broken, theirs[name]) for name, session in ours.items()}
        for ours, theirs in zip(found.scene(right), found.scene(broken), strict=True)
    ]
    assert wrong[:3] == [{"A": [], "B": [], "C": []}] * 3
    assert wrong[3] == {"D": [4], "E": [4], "F": [4]}
    assert wrong_tokens(found, model)[-1] != set()
    assert differ(found, model, {"A": 5, "B": 6, "C": 8}) == set()
    assert differ(found, model, {"A": 5, "B": 5, "C": 5}) == set()


def test_061_mixed_lengths_are_right_in_any_order_of_blocks(model):
    found = hunt("061")

    def play(engine, lengths):
        for length in (4, 4, 4), lengths:
            sessions = start(
                engine, {name: [10 * n + 3] * m for n, (name, m) in enumerate(zip("ABC", length, strict=True))}
            )
            for _ in range(8):
                live = list(sessions.values())
                engine.take_tokens(live, engine.decode_step_sessions(live))
            made = [session.completion_ids for session in sessions.values()]
            for name in "BAC":
                engine.free(sessions[name])
        return made

    assert len({str(play(engine, (4, 5, 6))) for engine in found.engines(model)}) == 1
    assert len({str(play(engine, (4, 4, 4))) for engine in found.engines(model)}) == 2


def test_061_below_the_threshold_the_order_of_blocks_does_no_harm(model):
    found = hunt("061")
    config = replace(found.config, triton_kv_append_min_batch=4)
    engines = [InferenceEngine(model, config, parts) for parts in (found.right, found.broken)]
    for ours, theirs in zip(*map(found.scene, engines), strict=True):
        assert [one.token_ids for one in ours.values()] == [one.token_ids for one in theirs.values()]


def test_061_wants_its_kernels(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "triton_runs_on", lambda device: False)
    with pytest.raises(ConfigError, match="the kernels of lesson 061 do not run here: use a GPU, or set TRITON_INTERP"):
        hunt("061").answer(position=3)
    assert hunt("060").engines(model)


def play_with_forks(engine, forks_at, length=5, steps=10):
    """Tokens of a request and of its forks, each of which joins at a step and goes on with the same word."""
    sessions = start(engine, {"A": [3] * length, "B": [13] * 6})
    for step in range(steps):
        for _ in range(forks_at.count(step)):
            name = f"fork {len(sessions)}"
            sessions[name] = engine.fork(sessions["A"])
            sessions[name].token_ids[-1] = 99
        live = list(sessions.values())
        engine.take_tokens(live, engine.decode_step_sessions(live))
        engine.audit(live)
    return str({name: session.completion_ids for name, session in sessions.items()})


@pytest.mark.parametrize(("forks_at", "kinds"), [((1, 1), 2), ((1,), 1), ((1, 2), 1), ((), 1), ((3, 3), 1)])
def test_062_only_two_forks_in_one_step_and_within_a_block_go_wrong(model, forks_at, kinds):
    found = hunt("062")
    assert len({play_with_forks(engine, forks_at) for engine in found.engines(model)}) == kinds


def test_062_one_of_the_three_loses_what_it_had_and_the_others_nothing(model):
    found = hunt("062")
    moments = wrong_tokens(found, model)
    assert moments[:3] == [set(), set(), set()]
    assert {name for names in moments for name in names} == {"A"}
    assert moments[-1] == {"A"}


def test_063_the_fork_goes_wrong_first_and_then_the_request_that_has_waited(model):
    found = hunt("063")
    moments = wrong_tokens(found, model)
    assert moments[:4] == [set(), set(), {"fork"}, {"fork"}]
    assert "A" in moments[-1]


@pytest.mark.parametrize(("length", "lost"), [(8, [4]), (7, [])])
def test_063_only_a_request_that_ends_with_a_block_loses_a_key_while_it_waits(model, length, lost):
    found, waited = hunt("063"), []
    for engine in found.engines(model):
        sessions = start(engine, {"A": [3] * length})
        fork = engine.fork(sessions["A"])
        for _ in range(3):
            engine.take_tokens([fork], engine.decode_step_sessions([fork]))
        waited += [engine, sessions["A"]]
    assert wrong_positions(*waited) == lost
