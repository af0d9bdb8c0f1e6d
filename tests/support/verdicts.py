"""What a verdict of the lab is to say of a wrong part, and of a right one that misses the idea."""

from functools import cache

from rosecourse import lesson
from rosecourse.lab.checks.judging import judged
from rosecourse.lab.course import COURSES


@cache
def of_the_course(number):
    """The verdict on the course's own part, which is made in this process: what parts are compared with is then known
    to each process that forks from it to check one."""
    verdict = judged(COURSES[number].ends_as(lesson(number).after), number, lambda *what: None)
    assert verdict.correct, verdict
    assert not verdict.missing, verdict
    return verdict


def assert_refused(verdict, cause, says):
    assert verdict.cause is cause, verdict
    assert says in str(verdict), verdict


def assert_right_but_costly(verdict, says):
    assert verdict.correct, verdict
    assert not verdict.passed
    assert says in str(verdict), verdict
