"""How a ratio is judged and shown."""

import pytest

from rosecourse.measure.stats import NO_DIFFERENCE, Interval, Ratio


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.0004, 1.3, "1.100x [1.0004, 1.300]"),
        (0.99993, 1.04, "1.100x [0.9999, 1.040]"),
        (1.0, 1.0, "1.100x [1.000, 1.000]"),
        (0.5, 0.99999999999999, "1.100x [0.500, 1.000]"),
    ],
)
def test_a_limit_beside_1_shows_on_which_side_it_lies(low, high, shown):
    assert str(Ratio(1.1, low, high)) == shown
    assert Ratio(1.1, 1.004, 1.3).shown(2) == "1.10x [1.004, 1.30]"


@pytest.mark.parametrize(
    ("low", "high", "control", "verdict"),
    [
        (1.0 + 1e-12, 1.3, None, NO_DIFFERENCE),  # from 1 by rounding alone
        (0.8, 1.0 - 1e-12, None, NO_DIFFERENCE),
        (1.0001, 1.3, None, "faster"),
        (0.8, 0.9999, None, "slower"),
        (0.95, 1.1, None, NO_DIFFERENCE),
        (1.002, 1.119, (0.97, 1.03), NO_DIFFERENCE),  # not outside what the same engine shows twice
        (1.04, 1.119, (0.97, 1.03), "faster"),
        (1.04, 1.119, (0.8, 0.9), "faster"),
        (0.8, 0.98, (0.96, 1.05), NO_DIFFERENCE),
        (0.8, 0.9, (0.96, 1.05), "slower"),
        (0.8, 0.9, (1.1, 1.3), "slower"),
    ],
)
def test_verdicts(low, high, control, verdict):
    assert Ratio((low + high) / 2, low, high, control and Interval(1.0, *control)).verdict == verdict
