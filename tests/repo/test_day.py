"""Tests that are too long for every run come round."""

import math

import pytest

from tests.support.day import EVERY, of_the_day, turns_of_the_day


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


def test_of_long_tests_a_fifth_is_run_on_a_day_and_each_has_its_turns_one_after_another():
    days = [turns_of_the_day(range(45), 700 + day) for day in range(4 * EVERY)]
    for case in range(45):
        turns = [one[case] for one in days if case in one]
        assert turns == list(range(turns[0], turns[0] + 4))
    assert {len(one) for one in days} == {9}
    assert turns_of_the_day("ab", 7) == {"a": 7, "b": 7}, "whoever asks for one test gets it"
