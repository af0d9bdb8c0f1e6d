"""Each lesson that replaces a part has one course, in a file of its own, that fits its rung of the ladder."""

import importlib

import pytest

from rosecourse import LESSONS, lesson
from rosecourse.lab.course import COURSES


def test_the_courses_are_those_of_the_ladder_in_its_order():
    assert list(COURSES) == [*(rung.number for rung in LESSONS if rung.changes), "073", "074"]
    assert list(COURSES)[:5] == ["036", "038", "059", "060", "061"]


@pytest.mark.parametrize("number", COURSES)
def test_a_course_is_one_object_in_the_file_of_its_number(number):
    module = importlib.import_module(f"rosecourse.lab.course.l{number}")
    assert module.COURSE is COURSES[number]


@pytest.mark.parametrize("number", COURSES)
def test_a_course_fits_its_rung(number):
    course, rung = COURSES[number], lesson(number)
    assert course.world.part in rung.changes
    assert getattr(rung.before, course.world.part) is not getattr(rung.after, course.world.part)
    assert course.questions.keys() == course.hints.keys()
    assert course.idea
