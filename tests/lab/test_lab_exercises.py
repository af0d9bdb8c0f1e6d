"""Exercises: built from the ladder, formatted, right and no faster than before until somebody has written them."""

import ast
import linecache
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from rosecourse import EngineConfig, InferenceEngine, LessonError, SamplingParams, lesson
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises.cells import exercise, hints, introduction, solution
from rosecourse.measure.counters import count_step

EXERCISES = {number: course.exercise for number, course in COURSES.items()}
PARAMS = SamplingParams(max_new_tokens=40, stop_on_eos=False)
# Counted are what lessons are about; the learner's methods have other names and numbers of calls than ours.
COUNTED = ("append_token calls", "tensors built from Python lists", "bytes of these", "index_select", "index_put")


def run_cell(source, name):
    """What a notebook cell leaves behind; Triton reads the source of a kernel, so it is put where Python looks."""
    file = f"<cell of {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), space)
    return space


def part_of(source, number):
    return run_cell(source, number)[EXERCISES[number].name]


def engine_with(model, number, part, **config):
    rung = lesson(number)
    config = EngineConfig(**{"block_size": 8, "max_batch_size": 8, "prefix_cache": False, **config})
    return InferenceEngine(model, config, rung.before.with_(**{rung.changes[0]: part}))


def start(engine, lengths):
    sessions = [engine.new_session([n + 1] * length, PARAMS) for n, length in enumerate(lengths)]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def completions(engine):
    """Tokens of mixed lengths over block boundaries, with a fork within a block and one at its end."""
    sessions = start(engine, (1, 7, 8, 9, 16))
    for number in range(20):
        if number in (4, 8):
            sessions.append(engine.fork(sessions[0]))
            sessions[-1].token_ids[-1] = 50 + number
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))
    engine.kv.audit([session.block_ids_per_layer for session in sessions])
    return [session.completion_ids for session in sessions]


def counted(engine, number):
    """What four steps count: in a block, over its end, with a fork, and after it."""
    sessions = start(engine, (6, 6, 6))
    part, found = lesson(number).changes[0], []
    for step in range(4):
        if step == 3:
            sessions.append(engine.fork(sessions[0]))
        seen = count_step(engine, sessions, part=part)
        found.append({name: seen.rows()[name] for name in COUNTED} | dict(seen.launches))
    return found


@pytest.mark.parametrize("number", EXERCISES)
def test_an_untouched_exercise_is_the_part_before_the_lesson(number, small_model):
    part = part_of(exercise(number), number)
    before = getattr(lesson(number).before, lesson(number).changes[0])
    config = {"triton_kv_append_min_batch": 2}
    mine, theirs = (engine_with(small_model, number, p, **config) for p in (part, before))
    assert completions(mine) == completions(theirs)
    assert counted(mine, number) == counted(theirs, number)


@pytest.mark.parametrize("number", EXERCISES)
def test_a_solution_is_the_part_after_the_lesson(number, small_model):
    part = part_of(solution(number), number)
    after = getattr(lesson(number).after, lesson(number).changes[0])
    config = {"triton_kv_append_min_batch": 2}
    mine, theirs = (engine_with(small_model, number, p, **config) for p in (part, after))
    assert completions(mine) == completions(theirs)
    found = counted(mine, number)
    assert found == counted(theirs, number)
    before = getattr(lesson(number).before, lesson(number).changes[0])
    assert found != counted(engine_with(small_model, number, before, **config), number)


def test_the_gate_of_061_can_be_written_before_the_kernel(small_model):
    """The function of the exercise calls the course's kernel, and counts as its launch."""
    gate = solution("061")
    source = exercise("061") + "\n\n" + gate[gate.index("class MyKVAppend") :]
    mine, theirs = (
        engine_with(small_model, "061", part, triton_kv_append_min_batch=2)
        for part in (part_of(source, "061"), lesson("061").after.kv_append)
    )
    assert completions(mine) == completions(theirs)
    found = counted(mine, "061")
    assert found == counted(theirs, "061")
    assert found[0]["kv_append_triton_full_batch"] == small_model.shape.num_layers


@pytest.mark.parametrize("number", EXERCISES)
@pytest.mark.parametrize("build", [exercise, solution])
def test_a_cell_is_formatted_and_lints(number, build, tmp_path):
    source = build(number)
    ruff = [sys.executable, "-m", "ruff"]
    file = ["--stdin-filename", "notebooks/cell.py", "-"]
    done = subprocess.run([*ruff, "format", *file], input=source, capture_output=True, text=True, check=True)
    assert done.stdout == source
    done = subprocess.run([*ruff, "check", *file], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("number", EXERCISES)
def test_an_exercise_differs_from_its_source_by_what_is_said_of_it(number):
    """Without comments, docstrings and the stubs, nothing is left of it but the part as it was."""
    asked, rung = EXERCISES[number], lesson(number)
    old = inspect_class(rung.before, rung)
    tree = ast.parse(exercise(number))
    new = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert new.name == asked.name
    new.name = old.name
    stubs = [node for node in new.body if getattr(node, "name", "") in asked.stubs]
    new.body = [node for node in new.body if node not in stubs]
    new.body[0] = old.body[0]  # the docstring
    assert ast.unparse(new) == ast.unparse(old)
    after = {node.name: node for node in inspect_class(rung.after, rung).body if isinstance(node, ast.FunctionDef)}
    assert [node.name for node in stubs] == list(asked.stubs)
    assert all(ast.unparse(node.args) == ast.unparse(after[node.name].args) for node in stubs)


def inspect_class(parts, rung):
    part = getattr(parts, rung.changes[0])
    tree = ast.parse(Path(sys.modules[part.__module__].__file__).read_text(encoding="utf-8"))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef))


@pytest.mark.parametrize("number", EXERCISES)
def test_an_exercise_gives_nothing_of_the_solution_away(number):
    """No statement or condition that the lesson adds stands in it, but for what the stubs do in a plain way."""
    rung = lesson(number)
    asked = EXERCISES[number]
    given = [ast.parse(dedent(body)) for body in (*asked.stubs.values(), *asked.kernel_code.functions.values())]
    added = statements(inspect_class(rung.after, rung)) - statements(inspect_class(rung.before, rung))
    assert added & statements(ast.parse(exercise(number))) <= statements(*given)
    assert added <= statements(ast.parse(solution(number)))


def statements(*trees):
    """The simple statements and the conditions of a source, as texts."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    simple = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
    found = {ast.unparse(node) for node in nodes if isinstance(node, simple) and "\n" not in ast.unparse(node)}
    conditions = {ast.unparse(node.test) for node in nodes if isinstance(node, ast.If)}
    return {text for text in found | conditions if not text.startswith(("'", '"'))}  # docstrings are no code


@pytest.mark.parametrize("number", EXERCISES)
def test_goals_are_numbered_and_hints_unfold_in_three_steps(number):
    comments = [line.strip() for line in exercise(number).splitlines() if re.match(r" +# \d", line)]
    assert sorted(int(line[2]) for line in comments) == list(range(1, len(EXERCISES[number].goals) + 1))
    text = hints(number)
    assert text.count("<details>") == text.count("</details>") == 3
    places = [text.index(title) for title in ("What to look at", "What to do", "The code", "class My")]
    assert places == sorted(places)
    assert solution(number) in text
    assert re.search(r"difficulty ★[★☆]{2} · about \d+ minutes", introduction(number))


def test_a_lesson_without_an_exercise_is_refused():
    for build in (exercise, solution, hints, introduction):
        with pytest.raises(LessonError, match="lesson '035' has no exercise: give one of 036, 038, 059, 060, 061"):
            build("035")


def test_a_source_that_moves_away_from_its_goals_is_noticed(monkeypatch):
    asked = EXERCISES["059"]
    asked = replace(asked, goals={"no such line": "1. do it", **asked.goals})
    monkeypatch.setitem(COURSES, "059", replace(COURSES["059"], exercise=asked))
    with pytest.raises(LessonError, match="'no such line' stands on 0 lines of the exercise"):
        exercise("059")
