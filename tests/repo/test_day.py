"""Tests that are too long for every run come round."""

import math

import pytest

from tests.support.day import of_the_day


@pytest.mark.parametrize(("cases", "n"), [(15, 2), (8, 3), (5, 5), (3, 4), (1, 1)])
def test_each_case_comes_in_so_many_days_and_each_day_has_as_many(cases, n):
    for first in (0, 739_000):
        days = [of_the_day(range(cases), n, "a test", first + day) for day in range(math.ceil(cases / n))]
        assert {case for drawn in days for case in drawn} == set(range(cases))
        assert {len(set(drawn)) for drawn in days} == {min(n, cases)}


def test_the_same_day_has_the_same_cases_and_another_day_has_others():
    drawn = [of_the_day(range(100), 10, "a test", day) for day in (5, 5, 6)]
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
