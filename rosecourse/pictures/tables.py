"""Tables: whole numbers without a point."""

from __future__ import annotations

import pandas as pd


def whole_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with columns of floats that are all whole numbers as columns of integers; a missing one stays missing.

    Columns that also hold other numbers are left as they are, so that a column reads in one way.
    """
    floats = table.select_dtypes("float")
    whole = [name for name in floats if (floats[name].dropna() % 1 == 0).all() and floats[name].notna().any()]
    return table.astype(dict.fromkeys(whole, "Int64"))
