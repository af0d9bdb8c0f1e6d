"""Bug hunts: what is told of a bug, and answers, checked and never given; test_hunt_symptoms.py has the bugs."""

import inspect
import re
import subprocess
import sys
from difflib import unified_diff

import pytest
import torch

from rosecourse import ConfigError, LessonError, lesson
from rosecourse.desk.notebooks import cells_of, source_of
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises import hunting as bug_hunt
from rosecourse.lab.exercises.hunting import hunt
from tests.support.cells import NOTEBOOKS
from tests.support.verdicts import trial_of

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
FEW = 12  # stories
EACH = pytest.mark.parametrize("number", COURSES)


@pytest.fixture(autouse=True)
def _one_model(model, monkeypatch):
    monkeypatch.setattr(bug_hunt, "load_model", lambda **_: model)


@EACH
def test_hunt_tells_its_symptom_and_nothing_of_the_answer(number):
    found, text = hunt(number), str(hunt(number))
    assert all(words in text for words in (found.symptom, *found.questions.values(), *found.bug.tools))
    told = " ".join([text, *found.bug.hints.values()])
    assert not any(line.strip() in told for line in found.bug.fault.splitlines())
    for name in set(found.questions) - {"line"}:
        assert not any(f"`{right}`" in found.bug.hints[name] for right in found._truth[name])
    assert [line[5:] for line in str(found.listing).splitlines()[1:-1]] == found.source.splitlines()


@pytest.mark.parametrize(  # `check` is for parts such as the exercise is about
    "number",
    [
        pytest.param(number, marks=needs_triton if lesson(number).kernels else ())
        for number in COURSES
        if not COURSES[number].replaces
    ],
)
def test_the_colleagues_part_is_right_but_for_the_fault(number):
    found, trial = hunt(number), trial_of(number)
    assert not any(outcome(trial.stories, lambda: found.mended, trial.stories.number(n)) for n in range(FEW))
    assert not list(trial.missing(found.mended))  # in 061 it launches the course's kernels
    stories = map(trial.stories.number, range(trial.stories.count))
    assert any(outcome(trial.stories, lambda: found.part, story) for story in stories)


@EACH
def test_the_broken_part_is_another_text_than_the_lessons(number):
    found = hunt(number)
    theirs = {line.strip() for line in inspect.getsource(getattr(lesson(number).after, found.replaces)).splitlines()}
    lines = [line.strip() for line in found.source.splitlines() if line.strip()]
    assert sum(line in theirs for line in lines) <= 0.2 * len(lines)
    method = next(value for value in vars(found.part).values() if inspect.isfunction(value))
    assert found.source.count(found.bug.fault) == 1
    assert inspect.getsource(method).strip() in found.source  # a debugger finds its lines


def test_the_colleagues_files_are_formatted_and_lint(tmp_path):
    for number in COURSES:
        for which in ("source", "mended_source"):
            (tmp_path / f"{which}_{number}.py").write_text(getattr(hunt(number), which), encoding="utf-8")
    for command in (["format", "--check", "--line-length", "96"], ["check"]):  # with numbers as wide as a pane
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, tmp_path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


@EACH
def test_right_answer_is_accepted_and_a_wrong_one_gets_a_hint(number):
    found = hunt(number)
    right = {name: sorted(truth)[0] for name, truth in found._truth.items()}
    assert found.answer(**right).found
    for name, truth in found._truth.items():
        kinds = ("1", "2", "3", "4") if any(text.isdigit() for text in truth) else ("S", "T", "A", "D", "fork")
        wrong = next(said for said in kinds if said not in truth)
        said = found.answer(**{**right, name: wrong})
        assert not said.found
        assert f"{name}: it is not {wrong}. {found.bug.hints[name]}" in said.lines
        alone = found.answer(**{name: right[name]})
        assert not alone.found
        assert [line.partition(": ")[2] for line in alone.lines].count("no answer yet") == len(right) - 1
    for empty in ({}, dict.fromkeys(right), dict.fromkeys(right, ...)):
        assert str(found.answer(**empty)).startswith("no answer yet: say ")


def test_an_answer_may_be_written_in_several_ways():
    found = hunt("060")
    text = found.bug.fault.splitlines()[0].strip()
    ways = {"whose": ["e", " E "], "position": [18, 18.0, "18", torch.tensor(18)], "line": [f"  {text}\n", text]}
    for name, values in ways.items():
        for value in values:
            assert f"{name}: right" in found.answer(**{name: value}).lines


def test_answers_of_another_kind_are_wrong(model):
    found = hunt("060")
    session = next(found.scene(found.engines(model)[0]))["B"]
    for name in found.questions:
        for value in (float("nan"), [1], torch.ones(2), "", 1.5, session):
            assert f"{name}: it is not " in str(found.answer(**{name: value}))
    told = found.answer(blok=3)
    assert not told.found
    assert all(name in str(told) for name in found.questions)
    assert "✗" in told._repr_html_()


def test_text_points_at_a_line_if_it_stands_there_alone():
    found = hunt("036")
    assert "line: right" in found.answer(line="entries[-1]").lines
    assert "line: right" not in found.answer(line="ids[-1]").lines
    assert "Say which, by its number." in str(found.answer(line="newest"))


def test_key_at_takes_the_cache_of_an_engine(model):
    found = hunt("060")
    right, _ = found.engines(model)
    session = next(found.scene(right))["A"]
    assert found.key_at(right.kv, session, 3).any()
    with pytest.raises(ConfigError, match="give one of 0 to 3"):
        found.key_at(right.kv, session, 4)


def test_what_has_no_hunt_is_refused():
    with pytest.raises(LessonError, match="'035' has no bug hunt"):
        hunt("035")


@EACH
def test_the_notebook_explains_the_bug_with_its_lines(number):
    found, text = hunt(number), source_of(cells_of(NOTEBOOKS / "hunts" / f"{number}_hunt.ipynb")[-1])
    broken, mended = (source.splitlines(keepends=True) for source in (found.source, found.mended_source))
    diff = "".join(unified_diff(broken, mended, "the colleague's", "mended", n=2))
    assert text.startswith("<details><summary><b>What it was</b> (after your answer)</summary>\n\n")
    assert text.endswith(f"\n\n```diff\n{diff}```\n\n</details>")
    named = set(re.findall(r"\bline (\d+)", text))
    assert named <= set(map(str, found._wrong_lines)), "a line that is named is to blame"
