"""Exercises: built from the ladder, formatted, right and no faster than before until somebody has written them."""

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rosecourse import EngineConfig, InferenceEngine, LessonError, SamplingParams, lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises.cells import exercise, hints, introduction, solution
from rosecourse.measure.counters import count_step
from rosecourse.pages.source import narrowed
from tests.support.cells import exercise_of, part_in, solution_of

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
EXERCISES = {number: course.exercise for number, course in COURSES.items()}
WHOLE = [number for number, asked in EXERCISES.items() if not asked.given]  # cells with the whole part
PARAMS = SamplingParams(max_new_tokens=40, stop_on_eos=False)


def completions(number, part, model):
    """Tokens of mixed lengths over block boundaries, with a fork within a block and one at its end; and what the last
    step counts."""
    config = EngineConfig(block_size=8, max_batch_size=8, prefix_cache=False, triton_kv_append_min_batch=2)
    world = COURSES[number].world
    engine = InferenceEngine(
        model, config, world.engine(lesson(number).after.with_(**{world.part: part}), model.device)
    )
    sessions = [engine.new_session([n + 1] * length, PARAMS) for n, length in enumerate((1, 7, 8, 9, 16))]
    engine.take_tokens(sessions, engine.prefill(sessions))
    for step in range(20):
        if step in (4, 8):
            sessions.append(engine.fork(sessions[0]))
            sessions[-1].token_ids[-1] = 50 + step
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    seen = count_step(engine, sessions)
    engine.kv.audit([session.block_ids_per_layer for session in sessions])
    return [session.completion_ids for session in sessions], dict(seen.launches)


@pytest.mark.parametrize("number", EXERCISES)
def test_untouched_it_is_the_part_before_the_lesson_and_its_solution_the_one_after(number, small_model):
    course, rung = COURSES[number], lesson(number)
    for mine, theirs in (
        (exercise_of(number), course.begins_as(rung.before)),
        (solution_of(number), course.ends_as(rung.after)),
    ):
        assert completions(number, mine, small_model) == completions(number, theirs, small_model)


@needs_triton
def test_check_says_plainly_that_a_gate_before_the_kernel_launches_one_that_writes_nothing():
    gate = solution("061")
    verdict = check(part_in(exercise("061") + "\n\n" + gate[gate.index("class MyKVAppend") :], "MyKVAppend"), "061")
    assert "K must be A0; found: unchanged" in str(verdict)
    assert check(solution_of("061"), "061").passed


@pytest.mark.parametrize("build", [exercise, solution])
def test_cells_are_formatted_and_lint(build, tmp_path):
    for number in EXERCISES:
        (tmp_path / f"cell_{number}.py").write_text(build(number), encoding="utf-8")
    for command in (["format", "--check"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, tmp_path], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def class_of(part):
    tree = ast.parse(narrowed(Path(sys.modules[part.__module__].__file__).read_text(encoding="utf-8")))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == part.__name__)


@pytest.mark.parametrize("number", WHOLE)
def test_an_exercise_differs_from_its_source_by_its_name_and_docstring(number):
    old = class_of(COURSES[number].begins_as(lesson(number).before))
    new = next(node for node in ast.parse(exercise(number)).body if isinstance(node, ast.ClassDef))
    new.name, new.body[0] = old.name, old.body[0]
    assert ast.unparse(new) == ast.unparse(old)


@pytest.mark.parametrize("number", WHOLE)
def test_an_exercise_gives_nothing_of_the_solution_away(number):
    asked, course = EXERCISES[number].kernel_code, COURSES[number]
    given = [ast.parse(dedent(body)) for body in (*asked.functions.values(), *asked.launches.values())]
    before, after = course.begins_as(lesson(number).before), course.ends_as(lesson(number).after)
    added = statements(class_of(after)) - statements(class_of(before))
    assert added & statements(ast.parse(exercise(number))) <= statements(*given)
    assert added <= statements(ast.parse(solution(number)))


def statements(*trees):
    """The simple statements and the conditions of a source, as texts."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    simple = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
    found = {ast.unparse(node) for node in nodes if isinstance(node, simple) and "\n" not in ast.unparse(node)}
    found |= {ast.unparse(node.test) for node in nodes if isinstance(node, ast.If)}
    return {text for text in found if not text.startswith(("'", '"'))}  # docstrings are no code


@pytest.mark.parametrize("number", EXERCISES)
def test_hints_unfold_in_three_steps_a_question_the_approach_the_code(number):
    text = hints(number)
    assert text.count("<details>") == text.count("</details>") == 3
    places = [text.index(part) for part in (EXERCISES[number].look, EXERCISES[number].do, narrowed(solution(number)))]
    assert places == sorted(places)
    assert EXERCISES[number].look.endswith("?")
    assert EXERCISES[number].text in introduction(number)


def test_a_lesson_without_an_exercise_is_refused():
    for build in (exercise, solution, hints, introduction):
        with pytest.raises(LessonError, match="lesson '035' has no exercise"):
            build("035")
