"""Bug hunts: the bug shows as its symptom says, nothing else is broken, and answers are checked, never given."""

import inspect
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch

from rosecourse import ConfigError, InferenceEngine, LessonError, lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.scenes import key_at, side_by_side, start
from rosecourse.lab.hunts import hunting as bug_hunt
from rosecourse.lab.hunts.hunting import explanation, hunt

NUMBERS = list(COURSES)
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


def wrong_answer(found, name):
    truth = found._truth[name]
    kind = ("1", "2", "3", "4") if any(text.isdigit() for text in truth) else ("S", "T", "A", "D", "fork")
    return next(x for x in kind if x not in truth)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_hunt_tells_its_symptom_and_what_to_find(number):
    found = hunt(number)
    assert found.symptom in str(found)
    assert found.symptom in found._repr_markdown_()
    assert all(f"`{name}`: {question}" in found._repr_markdown_() for name, question in found.questions.items())
    assert str(found.listing).splitlines()[0] == "  1  " + found.source.splitlines()[0]
    assert not any(line.strip() in str(found) for line in found.bug.fault.splitlines())
    yields = (
        "readers, a `dict` from name to mailbox" if number == "068" else "live sessions, a `dict` from name to session"
    )
    assert f"It yields the {yields}" in found._repr_markdown_()
    assert all(f"* {tool}\n" in found._repr_markdown_() and tool in str(found) for tool in found.bug.tools)
    assert "line" in found.questions


def with_marks(number):
    return pytest.param(number, marks=needs_triton if lesson(number).kernels else ())


# `check` is for parts such as the exercise is about.
OF_THE_EXERCISE = [number for number in NUMBERS if not COURSES[number].bug.part]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("number", [with_marks(number) for number in OF_THE_EXERCISE])
def test_the_colleagues_part_is_right_but_for_the_fault(number):
    """The mended one passes the check with the lesson's idea, and the broken one is wrong."""
    found = hunt(number)
    verdict = check(found.mended, number)
    assert verdict.correct, verdict
    assert not verdict.missing, verdict  # in 061 it launches the course's kernels
    verdict = check(found.part, number)
    assert verdict.faults, verdict


@pytest.mark.parametrize("number", NUMBERS)
def test_the_broken_part_is_another_text_than_the_lessons(number):
    """Beside the course's source every line differs, but for a few that any two authors share."""
    found = hunt(number)
    part = getattr(lesson(number).after, found.replaces)
    theirs = {line.strip() for line in inspect.getsource(part).splitlines()}
    lines = [line.strip() for line in found.source.splitlines() if line.strip()]
    assert sum(line in theirs for line in lines) <= 0.2 * len(lines)
    assert not any(line.strip() in theirs for line in found.bug.fault.splitlines())
    assert found.broken == lesson(number).after.with_(**{found.replaces: found.part})
    world = COURSES[number].world
    method = next(iter(world.methods)) if found.replaces == world.part else "__call__"
    called = inspect.getsource(getattr(found.part, method)).strip()
    assert called in textwrap.dedent(found.source)  # a debugger finds its lines


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("which", ["source", "mended_source"])
def test_the_colleagues_file_is_formatted_and_lints(number, which):
    source = getattr(hunt(number), which)
    ruff = [sys.executable, "-m", "ruff"]
    file = ["--stdin-filename", "cell.py", "-"]
    shown = ["--line-length", "96"]  # with numbers before the lines as wide as a pane
    done = subprocess.run([*ruff, "format", *shown, *file], input=source, capture_output=True, text=True, check=True)
    assert done.stdout == source
    done = subprocess.run([*ruff, "check", *file], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


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
    text = next(t for t in found._truth["line"] if not t.isdigit())
    ways = {"whose": ["e", " E "], "position": [18, 18.0, "18", torch.tensor(18)], "line": [f"  {text}\n", text]}
    for name, values in ways.items():
        for value in values:
            assert f"{name}: right" in str(found.answer(**{name: value}))
    assert "position: it is not 7." in str(found.answer(position=7))
    slip = found.answer(blok=3, line=text)
    assert (str(slip), slip.found) == ("blok: not asked for; give position, whose, line", False)
    assert "✗" in slip._repr_html_()


def test_answers_without_names_are_told_how_to_give_them():
    told = hunt("060").answer(2, 1, line="i = 1")
    assert str(told) == (
        "say what each answer is to: bug.answer(position=..., whose=..., line=...), with yours in place of the dots"
    )
    assert not told.found


def test_an_answer_of_the_wrong_kind_is_told_which_is_wanted(model):
    found = hunt("060")
    for value in (float("nan"), float("inf"), [1], torch.ones(2), "", "two\nlines", True, 1.5):
        told = str(found.answer(position=value)).splitlines()
        assert told[0].startswith("position: give a whole number, not "), told
    assert "position: give a whole number, not 'one'" in str(found.answer(position="one"))
    sessions = next(found.scene(found.engines(model)[0]))
    for value in (sessions["B"], 2, ["B"], ""):
        assert "whose: give the name of a session, in quotes, not " in str(found.answer(whose=value))
    for value in ([45], 4.5, False, "  "):
        assert "line: give the number of a line, or its text, not " in str(found.answer(line=value))


def test_key_at_takes_the_cache_of_an_engine(model):
    found = hunt("060")
    right, _ = found.engines(model)
    session = next(found.scene(right))["A"]
    assert torch.equal(found.key_at(right.kv, session, 3), key_at(right.kv, session, 3))
    with pytest.raises(ConfigError, match=r"key_at takes an engine's cache, engine\.kv, not an InferenceEngine"):
        found.key_at(right, session, 3)
    with pytest.raises(ConfigError, match="position 4 is not in the cache: give one of 0 to 3"):
        found.key_at(right.kv, session, 4)


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


def test_a_source_without_its_fault_is_noticed(monkeypatch):
    course = COURSES["060"]
    monkeypatch.setitem(COURSES, "060", replace(course, bug=replace(course.bug, fault="not in the source")))
    with pytest.raises(LessonError, match="'not in the source' stands 0 times in the source, not once"):
        hunt("060")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_explanation_unfolds_with_the_lines(number):
    text = explanation(number)
    found = hunt(number)
    assert text.startswith("<details>")
    assert text.count("```") == 2
    changed = set(found.bug.fault.splitlines()) ^ set(found.bug.mended.splitlines())
    assert changed
    assert all(f"\n-{line}\n" in text or f"\n+{line}\n" in text for line in changed)
    assert found.bug.explanation in text


def test_a_lesson_without_a_hunt_is_refused():
    for build in (hunt, explanation):
        with pytest.raises(LessonError, match="lesson '035' has no bug hunt: give one of 036, 038, 059, 060, 061"):
            build("035")


def test_a_piece_of_text_points_at_a_line_if_it_stands_on_that_one_alone():
    found = hunt("036")
    assert "line: right" in str(found.answer(line="entries[-1]"))
    somewhere = str(found.answer(line="ids[-1]"))
    assert "line: right" not in somewhere
    (several,) = [text for text in str(found.answer(line="newest")).splitlines() if text.startswith("line")]
    assert several.startswith("line: newest stands on lines ")
    assert several.endswith("Say which, by its number.")
    assert "line: it is not 1." in str(found.answer(line="1"))
