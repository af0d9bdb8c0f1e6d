"""How a ratio is judged and shown."""

import pytest

from rosecourse.measure.stats import NO_DIFFERENCE, Interval, Ratio


@pytest.mark.parametrize(
    ("low", "high", "control", "verdict", "limits"),
    [
        (1.0 + 1e-12, 1.3, None, NO_DIFFERENCE, "[1.000, 1.300]"),  # from 1 by rounding alone
        (0.8, 1.0 - 1e-12, None, NO_DIFFERENCE, "[0.800, 1.000]"),
        (1.0004, 1.3, None, "faster", "[1.0004, 1.300]"),  # a limit beside 1 shows on which side it lies
        (0.8, 0.99993, None, "slower", "[0.800, 0.9999]"),
        (0.95, 1.1, None, NO_DIFFERENCE, "[0.950, 1.100]"),
        (1.002, 1.119, (0.97, 1.03), NO_DIFFERENCE, "[1.002, 1.119]"),  # inside what the same engine shows twice
        (1.04, 1.119, (0.97, 1.03), "faster", "[1.040, 1.119]"),
        (1.04, 1.119, (0.8, 0.9), "faster", "[1.040, 1.119]"),
        (0.8, 0.98, (0.96, 1.05), NO_DIFFERENCE, "[0.800, 0.980]"),
        (0.8, 0.9, (0.96, 1.05), "slower", "[0.800, 0.900]"),
        (0.8, 0.9, (1.1, 1.3), "slower", "[0.800, 0.900]"),
    ],
)
def test_a_ratio_is_judged_by_its_limits(low, high, control, verdict, limits):
    found = Ratio(1.1, low, high, control and Interval(1.0, *control))
    assert (found.verdict, str(found)) == (verdict, f"1.100x {limits}")
