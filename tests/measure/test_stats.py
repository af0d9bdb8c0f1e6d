"""How a ratio is shown."""

import pytest

from rosecourse.measure.stats import NO_DIFFERENCE, Ratio


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
