"""What a verdict of the lab is to say of a wrong part, and of a right one that misses the idea."""

from rosecourse.lab.checks import judging


def judged(part, number):
    """The verdict on a class that is tried in this process."""
    return judging.judged(part, number, lambda story: None)


def assert_right_but_costly(verdict, says):
    assert verdict.correct, verdict
    assert not verdict.passed
    assert says in str(verdict), verdict
