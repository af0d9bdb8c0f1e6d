"""Exercises: built from the ladder, formatted, right and no faster than before until somebody has written them."""

import ast
import inspect
import linecache
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from rosecourse.lab.exercises.operation_race import operations_of
from rosecourse.lab.exercises.order_race import asks_of

from rosecourse import EngineConfig, InferenceEngine, LessonError, SamplingParams, lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check
from rosecourse.lab.checking.mailboxes import Box
from rosecourse.lab.course import COURSES
from rosecourse.lab.exercises.cells import exercise, hints, introduction, solution
from rosecourse.measure.anatomy import one_step
from rosecourse.measure.counters import count_step
from rosecourse.pages.source import narrowed

needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")
EXERCISES = {number: course.exercise for number, course in COURSES.items()}
WHOLE = [number for number, asked in EXERCISES.items() if not asked.given]  # cells with the whole part
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
    world = COURSES[number].world
    return InferenceEngine(model, config, world.engine(rung.after.with_(**{world.part: part}), model.device))


def before(number):
    """The part that the exercise begins as."""
    return COURSES[number].begins_as(lesson(number).before)


def after(number):
    """The part that its solution is."""
    return COURSES[number].ends_as(lesson(number).after)


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


def wakes_of_ten(delivery):
    """How often each of ten readers has been woken, after each of four hand-overs and after a flush."""
    boxes, seen = [Box(str(n)) for n in range(10)], []
    for calls in (10, 10, 0, 3):
        delivery.hand_over([(box, "word") for box in boxes[:calls]])
        seen.append([box.wakes for box in boxes])
    delivery.flush()
    return [*seen, [box.wakes for box in boxes]]


COUNTED_OPS = {"operations": operations_of, "kernels": operations_of, "late asks": asks_of}


def counted(engine, number):
    """What four steps count: in a block, over its end, with a fork, and after it. Of a pipeline, steps in flight; of a
    delivery, wakes; of the operations of a layer, those that move data, or what their kernels ask for too late."""
    sessions = start(engine, (6, 6, 6))
    part, found = COURSES[number].world.part, []
    if part == "pipeline":
        return [one_step(engine, sessions) or engine.num_in_flight for _ in range(4)]
    if part == "delivery":
        return wakes_of_ten(engine.delivery)
    if part == "ops":
        made = lesson(number).after.with_(ops=lambda model, config: engine.decode_step.runner.work.forward.model.ops)
        return COUNTED_OPS[COURSES[number].track.counted](made, engine.model)
    if part not in engine.decode_step.stages:
        part = "plan" if part == "rows" else "forward"  # it is called there
    for step in range(4):
        if step == 3:
            sessions.append(engine.fork(sessions[0]))
        seen = count_step(engine, sessions, part=part)
        found.append({name: seen.rows()[name] for name in COUNTED} | dict(seen.launches))
    return found


@pytest.mark.parametrize("number", EXERCISES)
def test_an_untouched_exercise_is_the_part_before_the_lesson(number, small_model):
    part = part_of(exercise(number), number)
    config = {"triton_kv_append_min_batch": 2}
    mine, theirs = (engine_with(small_model, number, p, **config) for p in (part, before(number)))
    assert completions(mine) == completions(theirs)
    if number != "036":  # its one method makes a tensor for each row, where the part before makes one for a layer
        assert counted(mine, number) == counted(theirs, number)


@pytest.mark.parametrize("number", EXERCISES)
def test_a_solution_is_the_part_after_the_lesson(number, small_model):
    part = part_of(solution(number), number)
    config = {"triton_kv_append_min_batch": 2}
    mine, theirs = (engine_with(small_model, number, p, **config) for p in (part, after(number)))
    assert completions(mine) == completions(theirs)
    found = counted(mine, number)
    assert found == counted(theirs, number)
    assert found != counted(engine_with(small_model, number, before(number), **config), number)


def test_the_untouched_cell_of_061_has_an_empty_kernel_and_launches_nothing(small_model):
    source = exercise("061")
    kernel = next(
        node for node in ast.parse(source).body if getattr(node, "name", "") == "_kv_append_full_batch_kernel"
    )
    assert [ast.unparse(node) for node in kernel.body] == ["pass"]
    mine = engine_with(small_model, "061", part_of(source, "061"), triton_kv_append_min_batch=2)
    assert not any(name.startswith("kv_append_triton") for found in counted(mine, "061") for name in found)


@needs_triton
def test_check_says_plainly_that_a_gate_before_the_kernel_launches_one_that_writes_nothing():
    gate = solution("061")
    source = exercise("061") + "\n\n" + gate[gate.index("class MyKVAppend") :]
    verdict = check(part_of(source, "061"), "061")
    assert not verdict.correct
    assert "K must be A0; found: unchanged" in str(verdict)
    assert check(part_of(solution("061"), "061"), "061").passed


@pytest.mark.parametrize("number", EXERCISES)
@pytest.mark.parametrize("build", [exercise, solution])
def test_a_cell_is_formatted_and_lints(number, build, tmp_path):
    source = build(number)
    ruff = [sys.executable, "-m", "ruff"]
    file = ["--stdin-filename", "cell.py", "-"]
    done = subprocess.run([*ruff, "format", *file], input=source, capture_output=True, text=True, check=True)
    assert done.stdout == source
    done = subprocess.run([*ruff, "check", *file], input=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("number", WHOLE)
def test_an_exercise_differs_from_its_source_by_what_is_said_of_it(number):
    """Without comments, docstrings and the stubs, nothing is left of it but the part as it was."""
    asked = EXERCISES[number]
    old = inspect_class(before(number))
    tree = ast.parse(exercise(number))
    new = next(node for node in tree.body if isinstance(node, ast.ClassDef))
    assert new.name == asked.name
    new.name = old.name
    stubs = [node for node in new.body if getattr(node, "name", "") in asked.stubs]
    new.body = [node for node in new.body if node not in stubs]
    new.body[0] = old.body[0]  # the docstring
    assert ast.unparse(new) == ast.unparse(old)
    methods = {node.name: node for node in inspect_class(after(number)).body if isinstance(node, ast.FunctionDef)}
    assert [node.name for node in stubs] == list(asked.stubs)
    assert all(ast.unparse(node.args) == ast.unparse(methods[node.name].args) for node in stubs)


def inspect_class(part):
    tree = ast.parse(narrowed(Path(sys.modules[part.__module__].__file__).read_text(encoding="utf-8")))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == part.__name__)


@pytest.mark.parametrize("number", WHOLE)
def test_an_exercise_gives_nothing_of_the_solution_away(number):
    """No statement or condition that the lesson adds stands in it, but for what the stubs do in a plain way."""
    asked = EXERCISES[number]
    bodies = (*asked.stubs.values(), *asked.methods.values(), *asked.kernel_code.functions.values())
    given = [ast.parse(dedent(body)) for body in (*bodies, *asked.kernel_code.launches.values())]
    added = statements(inspect_class(after(number))) - statements(inspect_class(before(number)))
    assert added & statements(ast.parse(exercise(number))) <= statements(*given)
    assert added <= statements(ast.parse(solution(number)))


def statements(*trees):
    """The simple statements and the conditions of a source, as texts."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    simple = (ast.Assign, ast.AugAssign, ast.Return, ast.Expr)
    found = {ast.unparse(node) for node in nodes if isinstance(node, simple) and "\n" not in ast.unparse(node)}
    conditions = {ast.unparse(node.test) for node in nodes if isinstance(node, ast.If)}
    return {text for text in found | conditions if not text.startswith(("'", '"'))}  # docstrings are no code


def own_comments(number):
    """The comments of an exercise that its source does not have."""
    part = before(number)
    there = {line.strip() for line in narrowed(inspect.getsource(part)).splitlines()}
    lines = [line.strip() for line in exercise(number).splitlines()]
    return [line for line in lines if line.startswith("# ") and line not in there]


@pytest.mark.parametrize("number", WHOLE)
def test_the_comments_say_what_must_hold_and_dictate_no_steps(number):
    comments = " ".join(line.removeprefix("# ") for line in own_comments(number))
    assert comments == " ".join(EXERCISES[number].goals.values())
    assert not re.search(r"\b\d\. |[Ss]tep \d", comments + EXERCISES[number].text)
    assert all(re.match("Goal|Constraint", goal) for goal in EXERCISES[number].goals.values())


@pytest.mark.parametrize("number", EXERCISES)
def test_hints_unfold_in_three_steps_a_question_the_approach_the_code(number):
    text = hints(number)
    assert text.count("<details>") == text.count("</details>") == 3
    places = [text.index(title) for title in ("A question", "The approach", "The code", "class My")]
    assert places == sorted(places)
    assert EXERCISES[number].look.endswith("?")
    assert narrowed(solution(number)) in text
    assert re.search(r"difficulty ★[★☆]{2} · about \d+ minutes", introduction(number))


def test_a_lesson_without_an_exercise_is_refused():
    for build in (exercise, solution, hints, introduction):
        with pytest.raises(LessonError, match="lesson '035' has no exercise: give one of 036, 038, 059, 060, 061"):
            build("035")


def test_a_source_that_moves_away_from_its_goals_is_noticed(monkeypatch):
    asked = EXERCISES["062"]
    asked = replace(asked, goals={"no such line": "Goal: none.", **asked.goals})
    monkeypatch.setitem(COURSES, "062", replace(COURSES["062"], exercise=asked))
    with pytest.raises(LessonError, match="'no such line' stands on 0 lines of the exercise"):
        exercise("062")
