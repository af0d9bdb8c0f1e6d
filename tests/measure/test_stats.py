"""How a ratio is shown."""

import pytest

from rosecourse.measure.stats import Ratio


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.0004, 1.3, "1.100x [1.0004, 1.300]"),
        (0.99993, 1.04, "1.100x [0.9999, 1.040]"),
        (1.0, 1.0, "1.100x [1.000, 1.000]"),
        (0.5, 2.0, "1.100x [0.500, 2.000]"),
    ],
)
def test_a_limit_beside_1_shows_on_which_side_it_lies(low, high, shown):
    assert str(Ratio(1.1, low, high)) == shown


def test_fewer_digits():
    assert Ratio(1.1, 1.004, 1.3).shown(2) == "1.10x [1.004, 1.30]"
