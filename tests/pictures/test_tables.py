"""Tables show whole numbers as what they are."""

from math import nan

import pandas as pd

from rosecourse.pictures.tables import whole_numbers


def test_whole_numbers_lose_their_point_and_nothing_else_changes():
    table = pd.DataFrame(
        {"steps": [40.0, 7.0], "ms": [1.5, 2.0], "some": [nan, 3.0], "none": [nan, nan], "name": ["a", "b"]}
    )
    shown = whole_numbers(table)
    assert [[str(one) for one in shown[name]] for name in ("steps", "ms", "some", "none", "name")] == [
        ["40", "7"],
        ["1.5", "2.0"],
        ["<NA>", "3"],
        ["nan", "nan"],
        ["a", "b"],
    ]
    assert list(table["steps"]) == [40.0, 7.0]
