"""Exercises and solutions, as the notebooks hold them: both are right, and one has the idea."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from rosecourse import lesson
from rosecourse.kernels import TRITON_AVAILABLE, kv_append
from rosecourse.lab import check
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.course import COURSES
from rosecourse.pages.source import COLUMNS, narrowed
from tests.support.cells import NOTEBOOKS, exercise, exercise_of, hints, part_in, solution, solution_of
from tests.support.verdicts import trial_of

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
EACH = pytest.mark.parametrize("number", COURSES)
COPIED = {number for number, course in COURSES.items() if course.beside is None}
FEW = 12  # stories


@EACH
def test_untouched_cell_lacks_the_idea_and_the_solution_has_it(number):
    if lesson(number).kernels and not TRITON_AVAILABLE:
        pytest.skip("Triton exists for Linux only")
    trial, untouched, solved = trial_of(number), exercise_of(number), solution_of(number)
    for part in (untouched, solved):
        assert not any(outcome(trial.stories, lambda part=part: part, trial.stories.number(n)) for n in range(FEW))
    assert any(trial.missing(untouched))
    assert not any(trial.missing(solved))


@needs_triton
@pytest.mark.parametrize("number", sorted(COURSES.keys() - COPIED))
def test_a_solution_of_its_own_makes_the_right_tokens(number):
    trial = trial_of(number)
    assert "the baseline" in trial.in_an_engine(solution_of(number))


def functions_in(source):
    """The functions and methods of a source, without docstrings and layout; a cell has kernels in one piece."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    found = {node for node in nodes if "kv_append_" not in node.name}
    for node in found:
        node.decorator_list = []
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return {ast.unparse(node) for node in found}


@pytest.mark.parametrize("number", sorted(COPIED))
def test_the_solution_is_the_lessons_own_part(number):
    own = inspect.getfile(getattr(lesson(number).after, COURSES[number].world.part))
    sources = [Path(file).read_text(encoding="utf-8") for file in (own, kv_append.__file__)]
    assert functions_in(solution(number)) <= set.union(*map(functions_in, sources))


@needs_triton
def test_check_when_a_launched_kernel_writes_nothing_says_so():
    gate = solution("061")
    verdict = check(part_in(exercise("061") + "\n\n" + gate[gate.index("class MyKVAppend") :]), "061")
    assert "K must be A0; found: unchanged" in str(verdict)


def test_solutions_are_formatted_and_lint_as_cells_are(tmp_path):
    for number in COURSES:
        (tmp_path / f"cell_{number}.py").write_text(solution(number), encoding="utf-8")
    for command in (["format", "--check"], ["check"]):
        config = ["--config", NOTEBOOKS / "ruff.toml", "--config", "lint.isort.known-first-party=['rosecourse']"]
        call = [sys.executable, "-m", "ruff", *command, *config, tmp_path]
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@EACH
def test_hints_are_a_question_the_approach_and_the_code(number):
    question, approach, code = hints(number)
    assert question.endswith("?")
    assert approach.endswith(".")
    assert narrowed(code) == code
    assert max(map(len, code.splitlines())) <= COLUMNS
