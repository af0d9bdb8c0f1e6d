"""`check` is fed wrong parts: small differences against a part of the course, and those of the later lessons."""

import pytest

from rosecourse import lesson
from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.lab.checking.search import outcome
from rosecourse.lab.checks import judging
from rosecourse.lab.checks.checking import judged_apart
from tests.lab.costly_appends import COSTLY
from tests.lab.damage import cases, damaged, load, whole_parts
from tests.lab.wrong_appends import APPENDS
from tests.lab.wrong_later import LATER
from tests.lab.wrong_tables import TABLES
from tests.support.verdicts import trial_of

if TRITON_AVAILABLE:
    from tests.support import kernel_parts

CASES = [case for case in cases([*TABLES, *APPENDS, *COSTLY]) if TRITON_AVAILABLE or case[0] != "061"]


def by_name(part):
    return part.__name__


@pytest.fixture(autouse=True)
def _the_first_story_is_enough(monkeypatch):
    monkeypatch.setattr(judging, "smallest", lambda stories, story, found, try_it: (story, found))


def judged(part, number):
    return judged_apart(part, lesson(number))


def lacks_the_idea(part, number):
    """Whether a part is right, and its steps have more than those of the course's."""
    trial = trial_of(number)
    assert not any(outcome(trial.stories, lambda: part, trial.stories.number(n)) for n in range(3))
    return any(trial.missing(part))


@pytest.mark.parametrize(("number", "wrong"), CASES, ids=str)
def test_a_wrong_part_is_refused(number, wrong):
    part = damaged(number, wrong)
    if wrong.correct:
        assert lacks_the_idea(part, number)
    else:
        verdict = judged(part, number)
        assert not verdict.correct, verdict


@pytest.mark.parametrize("path", whole_parts("wrong, which a CPU can show"), ids=lambda path: path.stem)
def test_wrong_part_by_eyes_new_to_the_check_is_refused(path):
    number = path.name[:3]
    if number == "061" and not TRITON_AVAILABLE:
        pytest.skip("Triton exists for Linux only")
    verdict = judged(load(path), number)
    assert not verdict.passed, verdict


@pytest.mark.parametrize(("number", "fault"), [(n, fault) for n in LATER for fault in LATER[n]])
def test_a_wrong_part_of_a_later_lesson_is_refused(number, fault):
    assert not judged(LATER[number][fault], number).correct


@pytest.mark.parametrize("function", sorted(kernel_parts.WRONG, key=by_name) if TRITON_AVAILABLE else (), ids=by_name)
def test_a_wrong_kernel_is_refused(function):
    assert not judged(kernel_parts.with_kernel(function), "061").correct


@pytest.mark.parametrize("function", sorted(kernel_parts.COSTLY, key=by_name) if TRITON_AVAILABLE else (), ids=by_name)
def test_a_costly_kernel_lacks_the_idea(function):
    assert lacks_the_idea(kernel_parts.with_kernel(function), "061")


class SixteenAtATime(lesson("065").after.copy_blocks):
    def __call__(self, copies):
        for begin in range(0, len(copies), 16):
            super().__call__(copies[begin : begin + 16])


def test_copies_in_chunks_lack_the_idea():
    assert lacks_the_idea(SixteenAtATime, "065")
