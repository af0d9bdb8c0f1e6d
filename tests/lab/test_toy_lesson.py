"""A lesson is two objects, its rung and its course: all that the package does with a lesson follows from them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from rosecourse import LESSONS, InferenceEngine, LessonError, lesson
from rosecourse.commands import lab as command
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab import check, exercise, explanation, hints, hunt, race, solution
from rosecourse.lab.course import COURSES
from rosecourse.lab.hunts import hunting
from rosecourse.pages.source import narrowed
from tests.support import toy_lesson
from tests.support.commands import lab
from tests.support.right_parts import OwnKernel
from tests.support.toy_lesson import (
    COURSE,
    KERNEL_COURSE,
    KERNEL_RUNG,
    LAST,
    RUNG,
    ToyAppend,
    ToyWithKernels,
    WrongToy,
)

FILE = Path(toy_lesson.__file__)
needs_triton = pytest.mark.skipif(not TRITON_AVAILABLE, reason="Triton exists for Linux only")


@pytest.fixture
def register(monkeypatch):
    """Lets the ladder end with `LAST` and a rung behind it, with a course beside that, for one test."""
    whole = list(LESSONS)

    def add(rung, course):
        LESSONS[:] = [*LESSONS[: LESSONS.index(LAST) + 1], rung]
        monkeypatch.setitem(COURSES, course.number, course)

    yield add
    LESSONS[:] = whole


@pytest.fixture
def toy(register):
    register(RUNG, COURSE)


# -- the toy ----------------------------------------------------------------------------------------------------------


def test_it_has_a_diff_and_engines(toy, small_model):
    rung = lesson("999")
    assert rung is lesson("best") is RUNG
    assert rung.diff().startswith("--- kv_append before 999\n+++ kv_append after 999\n")
    assert "+        self.infos = kv.blocks_in_use\n" in rung.diff()
    parts = [engine.decode_step.kv_append for engine in rung.engines(small_model)]
    assert list(map(type, parts)) == [LAST.after.kv_append, ToyAppend]


def test_its_part_is_not_the_learners_and_the_one_before_it_lacks_the_idea(toy):
    assert "not yours" in str(check(ToyAppend, "999"))
    verdict = check(LAST.after.kv_append, "999")
    assert verdict.correct
    assert not verdict.passed
    assert verdict.missing == (
        "still 96 calls of info in a step of 16 sessions inside their blocks; "
        "the course's part of lesson 999 makes none",
    )


def test_its_part_has_the_ideas_of_the_lessons_before_it(toy):
    verdict = check(lesson("038").after.kv_append, "999")
    assert verdict.correct
    assert "the course's part of lesson 059 makes none" in str(verdict)


def test_a_wrong_part_is_refused_with_its_cause(toy):
    verdict = check(WrongToy, "999")
    assert not verdict.correct
    assert "K and V are swapped" in str(verdict)


def test_it_races(toy, small_model):
    ran = race(ToyAppend, "999", small_model, rounds=2)
    assert list(ran.table()["lesson"]) == ["lesson 061", "ToyAppend", "lesson 999"]
    assert "other tokens than before the lesson" in str(race(WrongToy, "999", small_model, rounds=1))


def test_its_bug_is_hunted(toy, model, monkeypatch):
    monkeypatch.setattr(hunting, "load_model", lambda **_: model)
    bug_hunt = hunt("999")
    assert COURSE.bug.symptom in str(bug_hunt)
    right, broken = bug_hunt.engines(model)
    assert isinstance(right.decode_step.kv_append, ToyAppend)
    assert type(broken.decode_step.kv_append) is bug_hunt.part
    assert [list(sessions) for sessions in bug_hunt.scene(broken)] == [["A", "B", "C"]] * 3
    assert bug_hunt.answer(session="B", position=4, line=COURSE.bug.fault).found
    said = bug_hunt.answer(session="A", position=4, line=COURSE.bug.fault)
    assert not said.found
    assert "session: it is not A. Compare keys." in str(said)
    assert "It looks at the ends alone." in explanation("999")


def test_its_exercise_is_the_part_before_it_and_its_solution_passes(toy, small_model):
    cells = {}
    for build in (exercise, solution):
        exec(compile(build("999"), "<cell>", "exec"), cells.setdefault(build, {"__name__": "__main__"}))
    untouched, solved = (cells[build]["MyAppend"] for build in (exercise, solution))
    assert "# 2. look up in it" in exercise("999")
    assert narrowed(solution("999")) in hints("999")
    parts = (RUNG.before, RUNG.before.with_(kv_append=untouched))
    before, mine = (InferenceEngine(small_model, parts=each).generate([[1, 2, 3], [4] * 20]) for each in parts)
    assert [one.token_ids for one in before] == [one.token_ids for one in mine]
    assert check(solved, "999").passed


def test_one_with_the_idea_passes_and_the_command_knows_the_lesson(toy, capsys, monkeypatch):
    monkeypatch.setattr(command.LESSON, "choices", ["999"])
    assert lab.main([f"{FILE}:OwnToy", "--lesson", "999", "--no-race"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("✓ ToyAppend, lesson 999: passed.")
    assert "calls of info\n" in said
    assert lab.main([f"{FILE}:WrongToy", "--lesson", "999", "--no-race"]) == 1


def test_nothing_of_it_is_left():
    assert [rung.number for rung in LESSONS if rung.number > "9"] == []
    for call in (check, hunt, exercise):
        with pytest.raises(LessonError):
            call(*((ToyAppend, "999") if call is check else ("999",)))


def test_a_rung_without_a_course_is_refused(register):
    register(RUNG, replace(COURSE, number="997"))
    with pytest.raises(LessonError, match="lesson '999' has no course: give one of 036, 038, 059, 060, 061"):
        check(ToyAppend, "999")


# -- kernels ----------------------------------------------------------------------------------------------------------

ALONE = replace(COURSE.world)  # the same world, in which no earlier lesson counts anything


@needs_triton
@pytest.mark.grid(1)
@pytest.mark.parametrize("part", [ToyWithKernels, OwnKernel], ids=lambda part: part.__name__)
def test_with_kernels_its_part_passes_and_so_does_a_kernel_of_the_learners_own(part, register):
    register(KERNEL_RUNG, replace(KERNEL_COURSE, world=ALONE))
    verdict = check(part, "998")
    assert verdict.passed, verdict


NO_LAUNCH = (
    "no Triton kernel is launched in a step of 4 sessions at the same slot, and let in; the course's part of lesson "
    "998 launches some"
)


@needs_triton
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("course", "says"),
    [
        (replace(KERNEL_COURSE, world=ALONE), NO_LAUNCH),
        (replace(KERNEL_COURSE, world=ALONE, ideas=()), "no Triton kernel is launched in any step that is counted"),
        (replace(KERNEL_COURSE, ideas=()), r"still \d+ writes of K and V without a Triton kernel in a step of"),
    ],
    ids=["its own idea", "nothing counted", "the ideas before it"],
)
def test_a_part_that_launches_no_kernel_does_not_pass(register, course, says):
    register(KERNEL_RUNG, course)
    verdict = check(lesson("060").after.kv_append, "998")
    assert verdict.correct, verdict
    assert not verdict.passed
    assert re.search(says, str(verdict)), verdict
