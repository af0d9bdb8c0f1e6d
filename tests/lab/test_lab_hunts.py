"""Bug hunts: what is told of a bug, and answers, checked and never given; test_hunt_symptoms.py has the bugs."""

import inspect
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from rosecourse import ConfigError, LessonError, lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.course import COURSES
from rosecourse.lab.course.scenes import key_at
from rosecourse.lab.exercises import hunting as bug_hunt
from rosecourse.lab.exercises.hunting import explanation, hunt

pytestmark = pytest.mark.grid

NUMBERS = list(COURSES)
needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture(autouse=True)
def _one_model(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "load_model", lambda **_: model)


def wrong_answer(found, name):
    truth = found._truth[name]
    kind = ("1", "2", "3", "4") if any(text.isdigit() for text in truth) else ("S", "T", "A", "D", "fork")
    return next(x for x in kind if x not in truth)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_hunt_tells_its_symptom_and_what_to_find(number):
    found = hunt(number)
    shown = found._repr_markdown_()
    assert shown == str(found)
    assert shown.startswith(f"{found.symptom}\n")
    assert all(f"* `{name}`: {question}\n" in shown for name, question in found.questions.items())
    assert all(f"* {tool}\n" in shown for tool in found.bug.tools)
    assert f"* `bug.scene(engine)` yields {found.bug.yields}\n" in shown
    assert not any(line.strip() in shown for line in found.bug.fault.splitlines())
    assert "line" in found.questions
    numbered = str(found.listing).splitlines()
    assert numbered[1] == "  1  " + found.source.splitlines()[0]
    assert [line[5:] for line in numbered[1:-1]] == found.source.splitlines()


def with_marks(number):
    return pytest.param(number, marks=needs_triton if lesson(number).kernels else ())


# `check` is for parts such as the exercise is about.
OF_THE_EXERCISE = [number for number in NUMBERS if not COURSES[number].bug.part]


@pytest.mark.grid
@pytest.mark.parametrize("number", [with_marks(number) for number in OF_THE_EXERCISE])
def test_the_colleagues_part_is_right_but_for_the_fault(number):
    """The mended one passes the check with the lesson's idea, and the broken one is wrong."""
    found = hunt(number)
    verdict = check(found.mended, number)
    assert verdict.correct, verdict
    assert not verdict.missing, verdict  # in 061 it launches the course's kernels
    verdict = check(found.part, number)
    assert not verdict.correct, verdict


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
    method = next(value for value in vars(found.part).values() if inspect.isfunction(value))
    assert inspect.getsource(method).strip() in found.source  # a debugger finds its lines


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
        assert "whose: give a name, in quotes, not " in str(found.answer(whose=value))
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
    named = set(re.findall(r"\bline (\d+)", found.bug.explanation))
    assert named <= set(map(str, found._wrong_lines)), "a line that is named is to blame"


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
