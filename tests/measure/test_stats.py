"""How a ratio is shown."""

import pytest

from rosecourse.measure.stats import NO_DIFFERENCE, Ratio, by_chance


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.0004, 1.3, "1.100x [1.0004, 1.300]"),
        (0.99993, 1.04, "1.100x [0.9999, 1.040]"),
        (1.0, 1.0, "1.100x [1.000, 1.000]"),
        (0.5, 2.0, "1.100x [0.500, 2.000]"),
        (0.5, 0.99999999999999, "1.100x [0.500, 1.000]"),
    ],
)
def test_a_limit_beside_1_shows_on_which_side_it_lies(low, high, shown):
    assert str(Ratio(1.1, low, high)) == shown


def test_fewer_digits():
    assert Ratio(1.1, 1.004, 1.3).shown(2) == "1.10x [1.004, 1.30]"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.0 + 1e-12, 1.3, NO_DIFFERENCE),
        (0.8, 1.0 - 1e-12, NO_DIFFERENCE),
        (1.0001, 1.3, "faster"),
        (0.8, 0.9999, "slower"),
    ],
)
def test_what_differs_from_1_by_rounding_alone_is_no_difference(low, high, said):
    assert Ratio(1.0, low, high).verdict == said


def test_verdicts_on_the_same_work_are_put_into_perspective():
    same, missed = Ratio(1.0, 0.9, 1.1), Ratio(1.2, 1.1, 1.3)
    assert by_chance([same, same]).startswith("0 of these 2 intervals miss 1.")
    assert by_chance([same, missed, Ratio(0.5, 0.4, 0.9)]).startswith("2 of these 3 intervals miss 1.")
    assert by_chance([same, missed]).startswith("1 of these 2 intervals misses 1.")
