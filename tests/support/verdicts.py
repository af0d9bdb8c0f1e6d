"""The verdict of the lab on a part, in this process."""

from rosecourse.lab.checks import judging


def judged(part, number):
    """The verdict on a class that is tried in this process."""
    return judging.judged(part, number, lambda story: None)
