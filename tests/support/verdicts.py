"""The verdict of the lab on a part, in this process."""

from functools import cache
from itertools import groupby

from rosecourse.lab.checks import judging

trial_of = cache(judging.trial_of)  # the course's part is counted once


def judged(part, number):
    """The verdict on a class that is tried in this process."""
    return judging.judged(part, number, lambda story: None)


def operations_of(verdict):
    """How many operations the story of a verdict has; one that is repeated counts once."""
    return sum(1 for _ in groupby(verdict.wrong.lines))
