"""Each lesson that replaces a part has one course, in a file of its own, that fits its rung of the ladder."""

import importlib
import re

import pytest

from rosecourse import LESSONS, lesson
from rosecourse.lab.course import COURSES


def test_the_courses_are_those_of_the_ladder_in_its_order():
    assert list(COURSES) == [rung.number for rung in LESSONS if rung.changes and rung.number in COURSES]
    assert list(COURSES)[:5] == ["036", "038", "059", "060", "061"]


@pytest.mark.parametrize("number", COURSES)
def test_a_course_is_one_object_in_the_file_of_its_number(number):
    module = importlib.import_module(f"rosecourse.lab.course.l{number}")
    assert module.COURSE is COURSES[number]
    assert module.COURSE.number == number


@pytest.mark.parametrize("number", COURSES)
def test_a_course_fits_its_rung(number):
    course, rung = COURSES[number], lesson(number)
    assert course.world.part in rung.changes
    assert course.part(rung.before) is not course.part(rung.after)
    assert course.bug.questions.keys() == course.bug.hints.keys()
    assert course.ideas or course.idea
    assert bool(course.exercise.kernel_code.module) == bool(rung.kernels)


@pytest.mark.parametrize("number", COURSES)
def test_what_is_said_of_a_cost_agrees_with_its_number(number):
    for idea in COURSES[number].ideas:
        one, many = (idea.told(found, 0, number).replace(str(idea.situation), "") for found in (1, 20))
        assert not re.search(r"\b1 \w+s\b|\(\w*/?\w+\)", one), one
        assert not re.search(r"\b20 (?!times\b)\w+[^s]\b (is|does|makes)\b|\(\w*/?\w+\)", many), many
        assert not re.search(r"\(\w*/?\w+\)", idea.cost.many)
