"""Bug hunts: the bug shows as its symptom says, nothing else is broken, and answers are checked, never given."""

import inspect
from dataclasses import replace

import pytest
import torch

from rosecourse import ConfigError, LessonError, lesson
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.scenes import key_at, side_by_side, start
from rosecourse.lab.hunts import hunting as bug_hunt
from rosecourse.lab.hunts.hunting import explanation, hunt

NUMBERS = list(COURSES)


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


def wrong_answer(found, name):
    truth = found._truth[name]
    return next(x for x in ("1", "2", "3", "S", "T", "A", "D", "fork") if x not in truth)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_hunt_tells_its_symptom_and_what_to_find(number):
    found = hunt(number)
    assert found.symptom in str(found)
    assert found.symptom in found._repr_markdown_()
    assert all(f"`{name}`: {question}" in found._repr_markdown_() for name, question in found.questions.items())
    assert found.listing.splitlines()[0] == "  1  " + found.source.splitlines()[0]
    assert found.bug.new.splitlines()[0] not in str(found)
    assert "line" in found.questions


@pytest.mark.parametrize("number", NUMBERS)
def test_the_broken_part_is_the_lessons_source_with_one_replacement(number):
    found = hunt(number)
    part = COURSES[number].part(lesson(number).after)
    assert inspect.getsource(part).count(found.bug.old) == 1
    assert found.source.replace(found.bug.new, found.bug.old) == inspect.getsource(part)
    assert inspect.getsource(found.part.__call__).strip() in found.source  # a debugger finds its lines
    assert found.broken == lesson(number).after.with_(**{COURSES[number].world.part: found.part})


@pytest.mark.parametrize("number", NUMBERS)
def test_the_right_answer_is_accepted_and_a_wrong_one_gets_a_hint(number):
    found = hunt(number)
    right = {name: sorted(truth)[0] for name, truth in found._truth.items()}
    assert found.answer(**right).found
    assert str(found.answer(**right)).endswith("Found. Compare with the explanation below.")
    for name in found.questions:
        wrong = wrong_answer(found, name)
        said = found.answer(**{**right, name: wrong})
        assert not said.found
        assert f"{name}: it is not {wrong}. {found.bug.hints[name]}" in str(said).splitlines()
        alone = found.answer(**{name: right[name]})
        assert not alone.found
        assert str(alone).splitlines().count(f"{name}: right") == 1
        assert str(alone).count("no answer yet") == len(found.questions) - 1


@pytest.mark.parametrize("number", NUMBERS)
def test_no_hint_gives_the_answer(number):
    found = hunt(number)
    words = " ".join([found.symptom, *found.questions.values(), *found.bug.hints.values()])
    assert not any(text in words for text in found._truth["line"] if not text.isdigit())
    for name in set(found.questions) - {"line"}:
        assert not any(f"`{right}`" in found.bug.hints[name] for right in found._truth[name])


@pytest.mark.parametrize("number", NUMBERS)
def test_placeholders_are_no_answer(number):
    found = hunt(number)
    for empty in (None, ...):
        assert str(found.answer(**dict.fromkeys(found.questions, empty))).startswith("no answer yet: say ")
    assert str(found.answer()) == str(found.answer()) == f"no answer yet: say {', '.join(found.questions)}"


def test_an_answer_may_be_written_in_several_ways():
    found = hunt("060")
    (text,) = (t for t in found._truth["line"] if not t.isdigit())
    ways = {"session": ["b", " B "], "position": [1, 1.0, "1", torch.tensor(1)], "line": [f"  {text}\n", text]}
    for name, values in ways.items():
        for value in values:
            assert f"{name}: right" in str(found.answer(**{name: value}))
    for value in (float("nan"), float("inf"), [1], torch.ones(2), "", "two\nlines"):
        assert "position: it is not" in str(found.answer(position=value))
    with pytest.raises(ConfigError, match=r"does not ask for \['block'\]: it asks for session, position, line"):
        found.answer(block=3)


def test_036_one_of_two_reads_the_others_block_until_its_next(model):
    found = hunt("036")
    broken = found.engines(model)[1]
    states = []
    for sessions in found.scene(broken):
        tables = broken.decode_step.block_tables(list(sessions.values()))[0].tolist()
        held = {name: session.block_ids_per_layer[0] for name, session in sessions.items()}
        states.append([n for n, row in zip(held, tables, strict=True) if row[: len(held[n])] != held[n]])
    assert states == [[], [], *[["S"]] * 6, [], [], []]
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
    assert first > int(found._truth["step"].pop()) + 1
    assert differ(found, model, {"A": 5, "B": 6, "C": 8}) == set()
    assert differ(found, model, {"A": 5, "B": 6}, fork_at=2) == set()  # in the middle of a block


def test_060_the_newcomers_length_decides(model):
    found = hunt("060")
    places = [
        {n for n, s in ours.items() if wrong_positions(right, s, broken, theirs[n])}
        for _, right, ours, broken, theirs in side_by_side(found, model)
    ]
    assert places[:3] == [set(), set(), set()]
    assert places[3] == {"B", "C"}
    assert differ(found, model, {"A": 9, "B": 6, "C": 8, "E": 9}) != set()
    assert differ(found, model, {"A": 9, "B": 6, "C": 8, "E": 10}) == set()


def wrong_positions(right, ours, broken, theirs):
    positions = range(ours.num_cached_tokens)
    return [p for p in positions if not torch.equal(key_at(right.kv, ours, p), key_at(broken.kv, theirs, p))]


def test_061_the_others_go_wrong_in_the_step_of_the_fork(model):
    found = hunt("061")
    right, broken = found.engines(model)
    for step, (ours, theirs) in enumerate(zip(found.scene(right), found.scene(broken), strict=True)):
        if step == 3:
            wrong = {n: wrong_positions(right, s, broken, theirs[n]) for n, s in ours.items()}
            assert wrong == {"A": [], "fork": [], "B": [6], "C": [6], "D": [6]}
        elif step < 3:
            assert not any(wrong_positions(right, s, broken, theirs[n]) for n, s in ours.items())
    assert differ(found, model, {"A": 5, "B": 6, "C": 8}) == set()
    assert differ(found, model, {"A": 5, "B": 5, "C": 5}) == set()


def test_061_wants_its_kernels(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "triton_runs_on", lambda device: False)
    with pytest.raises(ConfigError, match="the kernels of lesson 061 do not run here: use a GPU, or set TRITON_INTERP"):
        hunt("061").answer(position=3)
    assert hunt("060").engines(model)


def test_a_source_without_the_place_of_the_bug_is_noticed(monkeypatch):
    course = COURSES["060"]
    monkeypatch.setitem(COURSES, "060", replace(course, bug=replace(course.bug, old="not in the source")))
    with pytest.raises(LessonError, match="'not in the source' stands 0 times in the source, not once"):
        hunt("060")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_explanation_unfolds_with_the_lines(number):
    text = explanation(number)
    found = hunt(number)
    assert text.startswith("<details>")
    assert text.count("```") == 2
    assert all(f"-{line}" in text or line in found.right_source for line in found.source.splitlines())
    assert found.bug.explanation in text


def test_a_lesson_without_a_hunt_is_refused():
    for build in (hunt, explanation):
        with pytest.raises(LessonError, match="lesson '035' has no bug hunt: give one of 036, 038, 059, 060, 061"):
            build("035")


def test_a_piece_of_text_points_at_a_line_if_it_stands_on_that_one_alone():
    found = hunt("036")
    assert "line: right" in str(found.answer(line="ids[0]"))
    somewhere = str(found.answer(line="ids[-1]"))
    assert "line: right" not in somewhere
    (several,) = [text for text in str(found.answer(line="signature")).splitlines() if text.startswith("line")]
    assert several.startswith("line: signature stands on lines ")
    assert several.endswith("Say which, by its number.")
    assert "line: it is not 1." in str(found.answer(line="1"))
