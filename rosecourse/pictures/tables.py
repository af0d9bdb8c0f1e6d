"""Tables: the ladder of steps, and whole numbers without a point."""

from __future__ import annotations

from math import nan

import pandas as pd

from ..measure.anatomy import PART_NAMES, LadderSteps


def steps_table(steps: LadderSteps) -> pd.DataFrame:
    """One row for each rung: the parts of a step, the whole, the device's time, and how many floors.

    NaN stands for a part that a rung's step does not have.
    """
    rows = {}
    for rung in steps.times.seconds:
        parts = steps.times.milliseconds(rung)
        whole = steps.times.step_ms(rung)
        rows[rung] = {
            **{f"{PART_NAMES[part]} (ms)": parts.get(part, nan) for part in steps.times.parts},
            "step (ms)": whole,
            "device busy (ms)": steps.busy_ms[rung],
            "kernels and copies": steps.kernels[rung],
            "floor (ms)": steps.floor_ms,
            "times the floor": whole / steps.floor_ms,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.columns.name = "rung"  # above the rungs, in the one row of heads: the index's own name has a second
    return table


def whole_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The table, with columns of floats that are all whole numbers as columns of integers; a missing one stays missing.

    Columns that also hold other numbers are left as they are, so that a column reads in one way.
    """
    floats = table.select_dtypes("float")
    whole = [name for name in floats if (floats[name].dropna() % 1 == 0).all() and floats[name].notna().any()]
    return table.astype(dict.fromkeys(whole, "Int64"))
